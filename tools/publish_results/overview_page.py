"""Writes README.md of the results: what agrees, what fails, the records, every claim, and what is still to be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenflow.lab.recipes import Reproduction
from evenflow.lab.recipes.recipe_catalog import DOCUMENTS
from evenflow.lab.recipes.recipe_ordering import FAILS, ONE_SEED_FAILS
from evenflow.lab.report.numbers import duration

from . import claims, still_to_run, sweep_page, verdict_counts
from .best_known import Goal, Measured, measured, outcome
from .claims import ClaimVerdict
from .document_page import counts, plain
from .judged_record import extent, rows_run
from .stored_record import StoredRecord
from .stored_sweep import StoredSweep

HEAD = """# Results at full scale

Five papers' tables and figures, trained again. Every measured value on these pages comes from a committed record
(`DOCUMENT/NAME.json`: each row and seed with its hardware, versions, date and time), every published one from a recipe;
a test writes the pages again and compares. Where a paper does not state a setting, its page names our choice."""

RULE = """A value is **better** or **worse** if it differs from the published one by more than two standard errors of
both sides (ours alone if the paper gives no spread) and by more than the rounding of the printed digits, else
**reproduced**. Noise never helps: a mean that is farther away than the recipe's tolerance is then **too noisy to
tell**, and a value of **one seed** is no verdict; the side it is on is counted. "Earlier settings" were
changed in the recipe after the run. Counts of parameters need no training and are counted apart."""

RECORD_RULES = """One recurrent layer, at most 137,000 parameters, a linear readout, no augmentation, five seeds; mean ±
standard error. Adding counts as solved below 0.001."""

HEADLINES = """Outside of those rules: images distorted, or a hidden readout. Beside them the same readout after a fixed
random projection, which has no memory (`python tools/random_projection.py`)."""

SWEEPS = (
    "The best point of map × cell × activation for each task, found by `evenflow sweep`. The column "
    '"of" counts the points that were compared; 1 means that nothing was selected. [Details](sweeps.md).'
)

COMMANDS = """```
evenflow reproduce sgornn/table-1 --scale full    # leaves runs/sgornn/table-1/full/record.json
python tools/publish_results runs                             # merges it into docs/results and writes the pages
```"""


def page(
    records: Mapping[str, StoredRecord],
    judged: Mapping[str, Reproduction],
    sweeps: Sequence[StoredSweep] = (),
    found: Sequence[ClaimVerdict] = (),
    goals: tuple[Sequence[Goal], Sequence[Goal]] = ((), ()),
    controls: Mapping[str, Measured] | None = None,
) -> str:
    parts = [HEAD, "## In short", verdict_counts.section(judged, found), RULE]
    failing = [verdict for verdict in found if verdict.word == claims.FAILS]
    if failing:
        parts += ["## Claims that do not hold", _failing(failing)]
    if goals[0]:
        parts += ["## Records", RECORD_RULES, _records(goals[0], sweeps, judged, controls or {})]
    if goals[1]:
        parts += [HEADLINES, _headlines(goals[1], sweeps, judged, controls or {})]
    if found:
        parts += ["## Every claim", _claims(found)]
    failed = _orderings(judged)
    if failed:
        parts += ["## Orderings that do not hold", failed]
    if sweeps:
        parts += ["## Sweeps", SWEEPS, sweep_page.summary(sweeps)]
    parts += ["## What has been run", COMMANDS, _extents(records, judged)]
    waiting = still_to_run.section(records)
    if waiting:
        parts += ["## Still to be run", waiting]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _link(document: str) -> str:
    return f"[{document}]({document}.md)"


def _failing(failing: Sequence[ClaimVerdict]) -> str:
    rows = [
        [
            _link(v.claim.document),
            plain(v.claim.text),
            v.text.replace("does not hold", "fails"),
            plain(v.claim.why or "Not explained."),
        ]
        for v in failing
    ]
    return _table(["document", "claim", "verdict", "reason"], rows)


def _records(
    goals: Sequence[Goal],
    sweeps: Sequence[StoredSweep],
    judged: Mapping[str, Reproduction],
    controls: Mapping[str, Measured],
) -> str:
    rows = []
    for goal in goals:
        ours = measured(goal, sweeps, judged)
        sign = "≥" if goal.better == "higher" else "≤"
        notes = (
            [f"random projection, same readout: {controls[goal.control].text()}"] if goal.control in controls else []
        )
        if ours is not None and ours.parameters is not None:
            notes.insert(0, f"{ours.parameters:,} parameters, {ours.source.removeprefix('sweep: ')}")
        notes += [goal.note] if goal.note else []
        word = outcome(goal, ours)
        command = f"`{goal.command}`" if word != "reached" and goal.command else ""
        rows.append([
            goal.what, f"{sign} {goal.goal:g}", goal.known, "–" if ours is None else ours.text(), word,
            "; ".join(map(plain, notes)), command,
        ])  # fmt: skip
    return _table(["what", "goal", "best known", "ours", "outcome", "notes", "next"], rows)


def _headlines(
    goals: Sequence[Goal],
    sweeps: Sequence[StoredSweep],
    judged: Mapping[str, Reproduction],
    controls: Mapping[str, Measured],
) -> str:
    rows = []
    for goal in goals:
        ours = measured(goal, sweeps, judged)
        control = controls[goal.control].text() if goal.control in controls else "not run"
        rows.append([goal.what, "–" if ours is None else ours.text(), control])
    return _table(["what", "ours, test accuracy (%)", "fixed random projection, same readout"], rows)


def _claims(found: Sequence[ClaimVerdict]) -> str:
    rows = [
        [_link(v.claim.document), plain(v.claim.where), plain(v.claim.text), v.text, plain(v.measured)] for v in found
    ]
    return _table(["document", "where", "claim", "verdict", "measured, or the reason"], rows)


def _orderings(judged: Mapping[str, Reproduction]) -> str:
    rows = []
    for name, result in judged.items():
        for pair in result.pairs:
            if pair.outcome in (FAILS, ONE_SEED_FAILS):
                seeds = "one seed" if pair.outcome == ONE_SEED_FAILS else ""
                document = result.recipe.document
                rows.append([f"[{name}]({document}.md)", plain(pair.better), plain(pair.worse), seeds])
    return _table(["recipe", "this row is not better", "than this row", ""], rows) if rows else ""


def _extents(records: Mapping[str, StoredRecord], judged: Mapping[str, Reproduction]) -> str:
    words: dict[str, int] = {"in full": 0, "in part": 0, "with earlier settings": 0, "not yet": 0}
    lines = []
    for document in DOCUMENTS:
        for name, record in records.items():
            if record.recipe.document != document:
                continue
            state = extent(record)
            words[state] += 1
            verdicts = (
                counts(judged[name]).removeprefix("Of the published numbers: ").rstrip(".") if record.runs else "–"
            )
            time = duration(sum(run.seconds for run in record.runs)) if record.runs else "–"
            link = f"[{name}]({document}.md)"
            lines.append([link, plain(record.recipe.title), state, rows_run(record), time, verdicts])
    states = ", ".join(f"{count} {word}" for word, count in words.items())
    head = ["recipe", "what it is", "run", "rows", "time", "published numbers"]
    return (
        f"Of {len(records)} tables and figures: {states}. Times are machine times: runs that train side by side share "
        f"the time equally.\n\n{_table(head, lines)}"
    )
