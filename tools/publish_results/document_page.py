"""Writes the page of a document: for each recipe measured and published values, provenance and choices."""

from __future__ import annotations

from collections.abc import Sequence

from evenflow.lab.recipes import Reproduction, recipe_ordering, recipe_verdict
from evenflow.lab.recipes.recipe_catalog import DOCUMENTS
from evenflow.lab.recipes.recipe_cell import DIVERGED, EMPTY, TableCell
from evenflow.lab.recipes.recipe_legend import caption
from evenflow.lab.report.numbers import duration

from .judged_record import extent, is_earlier, of_one_setting, rows_run
from .stored_record import StoredRecord, StoredRun

NAMED = 8  # rows that a sentence lists


def page(document: str, parts: Sequence[str], waiting: Sequence[StoredRecord]) -> str:
    """The page, from the sections of its recipes and from the recipes that have not run."""
    head = [
        f"# {document}: results",
        f"{DOCUMENTS[document]}. Every table and figure at full scale, with measured and published values.",
        "Written by `python tools/publish_results` from the records in this folder; see [all results](README.md). ± is "
        "the standard deviation over seeds; verdicts go by standard errors.",
    ]
    if waiting:
        rows = [f"- {plain(r.recipe.name)}: {plain(r.recipe.title)} ({rows_run(r)} rows)" for r in waiting]
        parts = [*parts, "## Not run yet", "\n".join(rows)]
    return "\n\n".join([*head, *parts]) + "\n"


def section(record: StoredRecord, result: Reproduction, remarks: Sequence[str], drawn: bool) -> str:
    """The section of a recipe."""
    recipe = record.recipe
    also = f" Also {', '.join(recipe.also)}." if recipe.also else ""
    blocks = [f"## {recipe.name}: {plain(recipe.title)}", plain(recipe.measures + also), table(result)]
    blocks.append("\n".join(f"- {plain(line)}" for line in summary(record, result)))
    if drawn:
        blocks.append(f"![{plain(recipe.title)}]({recipe.address}.svg)")
        if record.lines:
            blocks.append(f"Lines are of one seed of each row. {caption(recipe)}".strip())
    if remarks:
        blocks.append("Where it differs:")
        blocks.append("\n".join(f"- {plain(text)}" for text in remarks))
    notes = [*recipe.notes, recipe.full.note, *(row.note for row in recipe.rows)]
    bullets = "\n".join(f"- {plain(note)}" for note in dict.fromkeys(notes) if note)
    blocks.append(f"<details><summary>Choices</summary>\n\n{bullets}\n\n</details>")
    return "\n\n".join(blocks)


def table(result: Reproduction) -> str:
    """A line for every row and column with a measured or published value."""
    columns = result.recipe.columns
    what = ["row", "what", "measured"] if len(columns) > 1 else ["row", f"measured: {columns[0].name}"]
    head = [*what, "published", "verdict"]
    lines = [head, ["---"] * len(head)]
    for label in result.labels:
        first = label
        for column in columns:
            cell = result.cells[label, column.name]
            if not cell.values and cell.verdict == EMPTY:
                continue
            what = [column.name] if len(columns) > 1 else []
            lines.append([first, *what, measured(cell), cell.published_text(), verdict(cell)])
            first = ""
    return "\n".join("| " + " | ".join(plain(text) for text in line) + " |" for line in lines)


def verdict(cell: TableCell) -> str:
    """The verdict, and whether it is about earlier settings of the recipe."""
    return f"{cell.verdict_text()} (earlier settings)" if cell.earlier else cell.verdict_text()


def measured(cell: TableCell) -> str:
    """Mean, standard deviation and number of seeds."""
    seeds = len(cell.values)
    several = f" ({seeds} seeds)" if seeds > 1 and cell.spread else ""
    return cell.measured_text() + several + cell.missing_text()


def summary(record: StoredRecord, result: Reproduction) -> list[str]:
    """Sentences on how much has run, the verdicts, the provenance, and anything unusual."""
    missing = [row.label for row in record.recipe.rows_at("full") if row.label not in result.labels]
    lines = [f"Run {extent(record)}: {rows_run(record)} rows, {_seeds(record)}. {counts(result)}"]
    if missing:
        more = f"; and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        lines[0] += f" Not yet: {'; '.join(missing[:NAMED])}{more}."
    ordering = recipe_ordering.summary(result.pairs)
    if ordering:
        lines.append(ordering)
    lines += _provenance(record)
    diverged = [f"{run.row} (seed {run.seed})" for run in record.runs if run.outcome == DIVERGED]
    if diverged:
        lines.append(f"Diverged: {'; '.join(diverged)}.")
    early = sum(run.outcome == "stopped early" for run in record.runs)
    if early:
        lines.append(f"Stopped early, as the recipe asks: {early} of {len(record.runs)} runs.")
    changes: dict[str, list[str]] = {}
    for run in record.runs:
        for name, value in run.changed.items():
            changes.setdefault(f"{name} = {value}", []).append(run.row)
    lines += [f"Changed from the recipe: {what} ({_rows(rows, result)})." for what, rows in changes.items()]
    used = of_one_setting(record)
    old = [run.row for run in used if is_earlier(record, run)]
    if old:
        lines.append(
            f"Run with earlier settings of the recipe, and not yet with today's: {_rows(old, result)}. "
            f"`evenflow reproduce {record.recipe.address} --scale full` runs them again."
        )
    replaced = [run.row for run in record.runs if run not in used]
    if replaced:
        lines.append(f"Left out, because the row was run again with other settings: {_rows(replaced, result)}.")
    lines += [f"The data: {note}." for note in dict.fromkeys(run.data for run in record.runs) if note]
    return lines


WORDS = (
    recipe_verdict.REPRODUCED,
    recipe_verdict.BETTER,
    recipe_verdict.WORSE,
    recipe_verdict.NOISY,
    recipe_verdict.ONE_SEED,
    recipe_verdict.DIFFERENT,
    recipe_verdict.NOT_COMPARABLE,
)


def counts(result: Reproduction) -> str:
    """The verdicts in a sentence."""
    of = {word: sum(cell.verdict == word for cell in result.cells.values()) for word in WORDS}
    parts = ", ".join(f"{count} {word}" for word, count in of.items() if count)
    return f"Of the published numbers: {parts}." if parts else "No number was published."


def _seeds(record: StoredRecord) -> str:
    per_row: dict[str, int] = {}
    for run in record.runs:
        per_row[run.row] = per_row.get(run.row, 0) + 1
    least, most = min(per_row.values()), max(per_row.values())
    return f"{least} to {most} seeds each" if least < most else f"{most} seed{'s' if most > 1 else ''} each"


def _provenance(record: StoredRecord) -> list[str]:
    """Hardware, versions and dates with the time of their runs, and with the rows if there are several."""
    groups: dict[tuple[str, str, str, str], list[StoredRun]] = {}
    for run in record.runs:
        groups.setdefault((run.hardware, run.evenflow, run.torch, run.date), []).append(run)
    lines = []
    most = max(groups.values(), key=len)
    for (hardware, version, torch, date), runs in groups.items():
        updates = sum(run.updates for run in runs)
        time = f"{duration(sum(run.seconds for run in runs))}, {updates:,} updates" if updates else "nothing is trained"
        named = "all others" if runs is most else _named(runs, record)
        rows = f": {named}" if len(groups) > 1 else ""
        number = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
        lines.append(f"{hardware}, evenflow {version}, torch {torch}, {date}: {number}, {time}{rows}.")
    return lines


def _named(runs: Sequence[StoredRun], record: StoredRecord) -> str:
    """The rows of these runs, with the seeds if the row has other seeds elsewhere."""
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for row in dict.fromkeys(run.row for run in runs):
        seeds = [run.seed for run in runs if run.row == row]
        whole = len(seeds) == sum(run.row == row for run in record.runs)
        by_seeds.setdefault(() if whole else tuple(seeds), []).append(row)
    parts = []
    for some, rows in sorted(by_seeds.items()):
        which = f"with seed{'s' if len(some) > 1 else ''} {', '.join(map(str, some))} " if some else ""
        parts.append(which + "; ".join(rows))
    return "; and ".join(parts)


def _rows(rows: Sequence[str], result: Reproduction) -> str:
    unique = list(dict.fromkeys(rows))
    return "all rows" if len(unique) == len(result.labels) else "; ".join(unique)


def plain(text: str) -> str:
    """A text on one line, with the characters escaped that Markdown would interpret."""
    text = " ".join(text.split())
    for letter in "\\|*<>`":
        text = text.replace(letter, f"\\{letter}")
    return text
