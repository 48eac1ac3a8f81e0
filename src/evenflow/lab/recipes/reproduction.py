"""The results of a recipe: outcomes of all rows and seeds, table cells with verdicts, and the ordering."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from . import provenance, recipe_cell, recipe_ordering, recipe_verdict
from .attempts import RowOutcome
from .recipe_cell import TableCell
from .recipe_ordering import Pair
from .schema import Recipe, RecipeRow


@dataclass
class Reproduction:
    """A recipe that has run.

    Attributes:
        recipe, scale: what has run.
        folder: parent of the run folders, and of page and record.
        outcomes: the run that counts for each row and seed that has ended.
        cells: the table, by row label and column name.
        pairs: the outcome of the document's ordering.
        page, record: paths of report.html and record.json; None if no row has ended.
        left: number of rows and seeds that the time limit left out.
    """

    recipe: Recipe
    scale: str
    folder: Path
    outcomes: list[RowOutcome]
    cells: dict[tuple[str, str], TableCell]
    pairs: list[Pair]
    page: Path | None = None
    record: Path | None = None
    left: int = 0

    def of(self, label: str) -> list[RowOutcome]:
        """The outcomes of a row, one per seed."""
        return [outcome for outcome in self.outcomes if outcome.job.row.label == label]

    def row_cells(self, label: str) -> list[TableCell]:
        """The cells of a row, in the order of the columns."""
        return [self.cells[label, column.name] for column in self.recipe.columns]

    @property
    def rows(self) -> list[RecipeRow]:
        """The rows that have run."""
        return list({outcome.job.row.label: outcome.job.row for outcome in self.outcomes}.values())

    @property
    def labels(self) -> list[str]:
        return [row.label for row in self.rows]

    @property
    def seconds(self) -> float:
        """How long the machine was busy with the runs."""
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def data_notes(self) -> list[str]:
        """What a reader should know about the data."""
        notes = [outcome.data.task.note for outcome in self.outcomes if outcome.data is not None]
        return [note for note in dict.fromkeys(notes) if note]

    @property
    def hardware(self) -> str:
        """The machines that the runs were made on."""
        return "; ".join(dict.fromkeys(str(provenance.read(outcome.job)["hardware"]) for outcome in self.outcomes))


def judge_outcomes(recipe: Recipe, scale: str, folder: Path, outcomes: list[RowOutcome]) -> Reproduction:
    """Gather the values of all seeds in cells, and judge the cells and the ordering."""
    cells: dict[tuple[str, str], TableCell] = {}
    for outcome in outcomes:
        row = outcome.job.row
        for column in recipe.columns:
            cell = cells.setdefault((row.label, column.name), TableCell(row, column))
            value = outcome.values.get(column.measure)
            if isinstance(value, str):
                cell.values.append(value)
            elif value is not None and not math.isnan(value):
                cell.values.append(value * column.factor)
            else:
                cell.gaps.append(outcome.gap or recipe_cell.missing_reason(column.measure, outcome.diverged))
    return Reproduction(recipe, scale, folder, outcomes, cells, judge_cells(recipe, cells, scale))


def judge_cells(recipe: Recipe, cells: dict[tuple[str, str], TableCell], scale: str) -> list[Pair]:
    """Fill in the verdicts of all cells; return the outcome of the document's ordering."""
    pairs = recipe_ordering.judge_ordering(recipe, cells, scale)
    worst = recipe_ordering.worst_by_row(pairs)
    for cell in cells.values():
        recipe_verdict.judge(cell, scale, worst if cell.column is recipe.columns[0] else {})
    return pairs
