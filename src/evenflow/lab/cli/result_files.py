"""The table of runs in the terminal, and the files beside their page: `--table` and `--figures`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evenflow.lab.terminal import new_table, say, show

if TYPE_CHECKING:
    from evenflow.lab.report.result_table import ResultTable


def show_table(results: ResultTable) -> None:
    """Print a table and what its signs mean."""
    numbers = [name for i, name in enumerate(results.headings) if any(row[i].values for row in results.rows)]
    table = new_table(*results.headings, right=numbers)
    for row in results.rows:
        table.add_row(*map(str, row))
    show(table)
    for note in results.notes:
        say(note)


def say_files(paths: Sequence[Path]) -> None:
    """Say which files were written beside a page."""
    if paths:
        say(f"Beside it: {', '.join(path.name for path in paths)}")
