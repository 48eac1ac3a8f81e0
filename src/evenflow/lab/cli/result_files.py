"""The table of runs in the terminal, and the files beside their page: `--table` and `--figures`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evenflow.lab.terminal import new_table, say, show

if TYPE_CHECKING:
    from evenflow.lab.report.result_table import ResultTable
    from evenflow.lab.report.run_record import RunRecord


def show_table(results: ResultTable) -> None:
    """Print a table and what its signs mean."""
    numbers = [name for i, name in enumerate(results.headings) if any(row[i].values for row in results.rows)]
    table = new_table(*results.headings, right=numbers)
    for row in results.rows:
        table.add_row(*map(str, row))
    show(table)
    for note in results.notes:
        say(note)


def write_beside(
    page: Path, runs: Sequence[RunRecord], results: ResultTable, table: str | None, figures: str | None
) -> None:
    """Write the table and the plots of a page as files beside it, if they are asked for, and say where they are."""
    from evenflow.lab.report import curves, write_figures, write_table
    from evenflow.lab.report.profiles import component_profile, profiles

    if table is not None:
        say(f"The table: {write_table(page, results, table)}")
    if figures is not None:
        panels = [*curves.learning_panels(runs), *profiles(runs), *component_profile(runs)]
        labels = {i: run.label for i, run in enumerate(runs)}
        say_figures(write_figures(page, panels, figures, labels))


def say_figures(paths: Sequence[Path]) -> None:
    """Say which figures were written."""
    say(f"The figures: {', '.join(map(str, paths))}" if paths else "There is no figure to write.")
