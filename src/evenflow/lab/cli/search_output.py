"""What `evenflow sweep --sampler optuna` prints and draws when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenflow.lab.terminal import new_table, say, show

if TYPE_CHECKING:
    from evenflow.lab.sweep import SearchRecord

ROWS = 20  # of the trials that are printed


def show_search(record: SearchRecord, folder: Path) -> None:
    """Print the trials, what the search cost and which options matter, and write the page of the search."""
    from evenflow.lab.report import write_search_page

    best = record.ranked()
    drawn = list(dict.fromkeys(name for row in record.trials for name in row.drawn))
    tested = any(row.test_metric == row.test_metric for row in best)
    numbers = ("rank", "trial", *drawn, "parameters", "updates", "validation", "test")
    table = new_table(
        "rank", "trial", *drawn, "parameters", "updates", "validation", *["test"] * tested, "state", right=numbers
    )
    table.padding = (0, 1, 0, 0)  # the table has many columns
    for rank, row in enumerate(best[:ROWS], 1):
        test = _number(row.test_metric) if row.state == "finished" else ""  # others were not trained to the end
        table.add_row(
            str(rank),
            str(row.number),
            *(_number(row.drawn.get(name, "")) for name in drawn),
            f"{row.parameters:,}",
            f"{row.updates:,}",
            _number(row.valid_metric),
            *[test] * tested,
            row.state,
        )
    show(table)
    say(f"Validation{' and test' if tested else ''}: {record.metric_name}, of the best weights.")
    if len(best) > ROWS:
        say(f"{len(best) - ROWS} more in study.json.")
    if record.importance:
        say("Importance: " + ", ".join(f"{name} {share:.0%}" for name, share in record.importance.items()) + ".")
    spent = f"{sum(row.updates for row in best):,} updates in {len(best)} trials"
    ends = {"finished": ".", "stopped": ": the same command goes on.", "running": "; other processes go on."}
    say(spent + ends[record.state])
    say(f"The search: {folder / 'study.json'}   Its page: {write_search_page(folder)}")


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if value == value else ""
    return str(value)
