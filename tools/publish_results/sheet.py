"""A committed record as the reproduction it came from, judged against the recipe of today."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from evenflow.lab.recipes.attempts import Outcome
from evenflow.lab.recipes.configs import Job, config_of, seeds_of
from evenflow.lab.recipes.curves import NOTHING as NO_LINE
from evenflow.lab.recipes.curves import Line as Drawn
from evenflow.lab.recipes.evidence import Evidence
from evenflow.lab.recipes.run import Reproduction, judge_all
from evenflow.lab.recipes.verdict import DIVERGED, NEVER, Cell, missing

from .committed import Entry, Line, Record


class Recorded(Evidence):
    """What a record has kept of a run: how it ended, and lines."""

    def __init__(self, job: Job, entry: Entry, lines: list[Line]) -> None:
        self.job, self.run, self.entry = job, None, entry
        self._lines = {line.kind: line for line in lines}

    @property
    def trained(self) -> bool:
        return self.entry.outcome != "not trained"

    @property
    def diverged(self) -> bool:
        return self.entry.outcome == DIVERGED

    def line(self, kind: str) -> Drawn:
        found = self._lines.get(kind)
        return NO_LINE if found is None else (np.asarray(found.x, float), np.asarray(found.y, float))

    def levels(self, kind: str) -> list[float]:
        found = self._lines.get(kind)
        return [] if found is None else list(found.levels)


def sheet(record: Record) -> Reproduction:
    """Cells and ordering, from the numbers of a record and the published ones of its recipe."""
    recipe, outcomes = record.recipe, []
    cells: dict[tuple[str, str], Cell] = {}
    for entry in record.runs:
        row = recipe.row(entry.row)
        job = Job(row, entry.seed, entry.lr, config_of(recipe, row, "full", seed=entry.seed, lr=entry.lr), Path())
        lines = [line for line in record.lines if (line.row, line.seed) == (entry.row, entry.seed)]
        outcomes.append(Outcome(job, Recorded(job, entry, lines), seconds=entry.seconds))
        for column in recipe.columns:
            cell = cells.setdefault((row.label, column.name), Cell(row, column))
            value = entry.values.get(column.name)
            if value is None:
                cell.gaps.append(missing(column.measure, entry.outcome == DIVERGED))
            else:
                cell.values.append(math.inf if value == NEVER else value)
    pairs = judge_all(recipe, cells, "full")
    return Reproduction(recipe, "full", Path(), outcomes, cells, pairs, sum(o.seconds for o in outcomes))


def extent(record: Record) -> str:
    """How much of a recipe has been run: "in full", "in part" or "not yet"."""
    if not record.runs:
        return "not yet"
    found = {(run.row, run.seed) for run in record.runs}
    wanted = [(row.label, seed) for row in record.recipe.chosen("full") for seed in seeds_of(record.recipe, "full")]
    return "in full" if found.issuperset(wanted) else "in part"


def rows_run(record: Record) -> str:
    """Rows that have been run, of all."""
    labels = {run.row for run in record.runs}
    return f"{len(labels)} of {len(record.recipe.chosen('full'))}"
