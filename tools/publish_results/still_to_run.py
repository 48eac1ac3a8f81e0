"""Lists what is still to be run: rows without a record, rows of earlier settings and of one seed, with commands."""

from __future__ import annotations

from collections.abc import Mapping

from evenflow.lab.recipes.measures import needs_training

from .judged_record import is_earlier, of_one_setting
from .stored_record import StoredRecord

LEAST = 3  # seeds of a row


def section(records: Mapping[str, StoredRecord]) -> str:
    """A line for each recipe that lacks rows or seeds; empty if none does."""
    lines = ["| recipe | rows not run | rows of earlier settings | rows of fewer than 3 seeds | command |"]
    lines.append("|---|---|---|---|---|")
    for name, record in records.items():
        used = of_one_setting(record)
        ran = {run.row for run in used}
        missing = [row.label for row in record.recipe.rows_at("full") if row.label not in ran]
        earlier = {run.row for run in used if is_earlier(record, run)}
        few = {row for row in ran - earlier if sum(run.row == row for run in used) < LEAST}
        if not needs_training(record.recipe):
            few = set()
        if missing or earlier or few:
            seeds = f" --seeds {max(LEAST, len(record.recipe.seeds))}"
            command = f"`evenflow reproduce {name} --scale full{seeds}`"
            numbers = (str(len(rows)) if rows else "–" for rows in (missing, earlier, few))
            lines.append(f"| {name} | {' | '.join(numbers)} | {command} |")
    return "\n".join(lines) if len(lines) > 2 else ""
