"""Turns a stored record into a reproduction, judged against the recipe of today."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from evenflow.lab.recipes.attempts import RowOutcome
from evenflow.lab.recipes.configs import RecipeJob, config_of, seeds_of
from evenflow.lab.recipes.recipe_cell import DIVERGED, NEVER, TableCell, missing_reason
from evenflow.lab.recipes.reproduction import Reproduction, judge_cells
from evenflow.lab.recipes.run_data import FigureLine, RunData

from .import_record import digest
from .stored_record import StoredLine, StoredRecord, StoredRun


class StoredRunData(RunData):
    """What a record stores of a run: how it ended, and the lines of its figures."""

    def __init__(self, job: RecipeJob, run: StoredRun, lines: list[StoredLine]) -> None:
        drawn = {line.kind: FigureLine(np.asarray(line.x, float), np.asarray(line.y, float), list(line.levels))
                 for line in lines}  # fmt: skip
        super().__init__(job, job.make_task(), None, drawn)
        self.outcome = run.outcome

    @property
    def trained(self) -> bool:
        return self.outcome != "not trained"

    @property
    def diverged(self) -> bool:
        return self.outcome == DIVERGED


def judge_record(record: StoredRecord) -> Reproduction:
    """Cells and ordering, from the measured values of a record and the published ones of its recipe.

    A row has the runs of one setting: the recipe's of today if there are any, else the latest, marked as earlier.
    """
    recipe, outcomes = record.recipe, []
    cells: dict[tuple[str, str], TableCell] = {}
    for run in of_one_setting(record):
        row = recipe.row(run.row)
        job = RecipeJob(row, run.seed, run.lr, config_of(recipe, row, "full", seed=run.seed, lr=run.lr), Path())
        lines = [line for line in record.lines if (line.row, line.seed) == (run.row, run.seed)]
        outcomes.append(RowOutcome(job, StoredRunData(job, run, lines), seconds=run.seconds))
        for column in recipe.columns:
            cell = cells.setdefault((row.label, column.name), TableCell(row, column))
            cell.earlier = is_earlier(record, run)
            value = run.values.get(column.name)
            if value is None:
                cell.gaps.append(missing_reason(column.measure, run.outcome == DIVERGED))
            else:
                cell.values.append(math.inf if value == NEVER else value)
    return Reproduction(recipe, "full", Path(), outcomes, cells, judge_cells(recipe, cells, "full"))


def is_earlier(record: StoredRecord, run: StoredRun) -> bool:
    """Whether a run was made with earlier settings of its recipe."""
    return run.recipe != digest(record.recipe, run.row)


def of_one_setting(record: StoredRecord) -> list[StoredRun]:
    """The runs that count: of each row those with today's settings, or if there are none those of the latest others."""
    runs = []
    for row in dict.fromkeys(run.row for run in record.runs):
        of_row = [run for run in record.runs if run.row == row]
        today = [run for run in of_row if not is_earlier(record, run)]
        latest = max(of_row, key=lambda run: run.date).recipe
        runs += today or [run for run in of_row if run.recipe == latest]
    return runs


def extent(record: StoredRecord) -> str:
    """How much of a recipe has run: "in full", "in part", "with earlier settings" or "not yet"."""
    if not record.runs:
        return "not yet"
    if any(is_earlier(record, run) for run in of_one_setting(record)):
        return "with earlier settings"
    seeds = seeds_of(record.recipe, "full")
    expected = [(row.label, seed) for row in record.recipe.rows_at("full") for seed in seeds]
    return "in full" if {(run.row, run.seed) for run in record.runs}.issuperset(expected) else "in part"


def rows_run(record: StoredRecord) -> str:
    """Number of rows that have run, of all."""
    labels = {run.row for run in record.runs}
    return f"{len(labels)} of {len(record.recipe.rows_at('full'))}"
