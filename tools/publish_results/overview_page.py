"""Writes README.md of the results: which claims of the documents hold, and how much has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evenflow.lab.recipes import Reproduction
from evenflow.lab.recipes.recipe_catalog import DOCUMENTS
from evenflow.lab.report.numbers import duration

from . import claims, sweep_page
from .document_page import counts, plain
from .judged_record import extent, rows_run
from .stored_record import StoredRecord
from .stored_sweep import StoredSweep

HEAD = """# Results at full scale

The documents' tables and figures, trained again with their own settings and budgets. Measured values come from the
records in this folder (`DOCUMENT/NAME.json`: each row and seed with its hardware, versions, date and time), published
values from the recipes; a test compares pages and records. Times are machine times: runs that train side by side share
the time equally.

```
evenflow reproduce sgornn/table-1 --scale full    # leaves runs/sgornn/table-1/full/record.json
python tools/publish_results runs                             # merges it into docs/results and writes the pages
```"""


SWEEPS = (
    "The best point of map × cell × activation for each task, found by `evenflow sweep`. The column "
    '"of" counts the points that were compared; 1 means that nothing was selected. [Details](sweeps.md).'
)


def page(
    records: Mapping[str, StoredRecord], judged: Mapping[str, Reproduction], sweeps: Sequence[StoredSweep] = ()
) -> str:
    parts = [HEAD, "## Claims", _claims(judged)]
    if sweeps:
        parts += ["## Sweeps", SWEEPS, sweep_page.summary(sweeps)]
    return "\n\n".join([*parts, "## What has been run", _extents(records, judged)]) + "\n"


def _claims(judged: Mapping[str, Reproduction]) -> str:
    lines = ["| document | claim | verdict | measured |", "|---|---|---|---|"]
    for claim in claims.CLAIMS:
        word, shown = claims.verdict(claim, judged)
        document = claim.recipe.split("/")[0]
        measured = plain(shown) if shown else "–"
        lines.append(f"| [{document}]({document}.md) | {plain(claim.text)} | {word} | {measured} |")
    return "\n".join(lines)


def _extents(records: Mapping[str, StoredRecord], judged: Mapping[str, Reproduction]) -> str:
    words = {"in full": 0, "in part": 0, "not yet": 0}
    lines = ["| recipe | what it is | run | rows | time | published numbers |", "|---|---|---|---|---|---|"]
    for document in DOCUMENTS:
        for name, record in records.items():
            if record.recipe.document != document:
                continue
            state = extent(record)
            words[state] += 1
            result = judged[name]
            verdicts = counts(result).removeprefix("Of the published numbers: ").rstrip(".") if record.runs else "–"
            time = duration(sum(run.seconds for run in record.runs)) if record.runs else "–"
            title = plain(record.recipe.title)
            lines.append(f"| [{name}]({document}.md) | {title} | {state} | {rows_run(record)} | {time} | {verdicts} |")
    states = ", ".join(f"{count} {word}" for word, count in words.items())
    return f"Of {len(records)} tables and figures: {states}.\n\n" + "\n".join(lines)
