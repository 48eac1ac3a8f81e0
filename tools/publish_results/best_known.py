"""records.toml: the best known results beside ours, and the controls that a headline is shown with."""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenflow.checks import one_of, unknown
from evenflow.lab.recipes import Reproduction
from evenflow.lab.report.numbers import number

from .stored_sweep import StoredSweep
from .sweep_page import SHARES

FILE, CONTROLS = "records.toml", "controls/random-projection.json"
REACHED, MISSED, FEW_SEEDS, NOT_RUN = "reached", "not reached", "reached with too few seeds", "not run"
SEEDS = 5  # that a record takes


@dataclass(frozen=True)
class Goal:
    """A result to reach, or with `goal` None a headline that is outside of the rules.

    Attributes:
        what: the task and the measure.
        goal, better: what counts as reached.
        known: the best published results.
        sweep: the stored sweep whose best point counts; or
        recipe, row, column: the cell that counts.
        control: name of the control to show beside it.
        note: what a reader should know.
        command: what runs it.
    """

    what: str
    goal: float | None = None
    better: str = "higher"
    known: str = ""
    sweep: str = ""
    recipe: str = ""
    row: str = ""
    column: str = ""
    control: str = ""
    note: str = ""
    command: str = ""


@dataclass(frozen=True)
class Measured:
    """The values of the seeds, in the unit of the goal, and how many parameters the model has if that is known."""

    values: tuple[float, ...]
    source: str
    parameters: int | None = None

    @property
    def error(self) -> float:
        return statistics.stdev(self.values) / math.sqrt(len(self.values)) if len(self.values) > 1 else 0.0

    def text(self) -> str:
        mean, seeds = number(statistics.fmean(self.values), 4), len(self.values)
        return f"{mean} ± {number(self.error, 2)} ({seeds} seeds)" if seeds > 1 else f"{mean} (one seed)"


def read(folder: Path) -> tuple[list[Goal], list[Goal]]:
    """The records and the headlines of a results folder; empty if it has no such file."""
    path = folder / FILE
    if not path.is_file():
        return [], []
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        goals = [[_goal(entry) for entry in table.get(kind, [])] for kind in ("record", "headline")]
    except (ValueError, OSError, TypeError) as error:
        raise ValueError(f"{str(path)!r} cannot be read: {error}") from error
    return goals[0], goals[1]


def _goal(entry: Mapping[str, Any]) -> Goal:
    for key in entry:
        if key not in Goal.__dataclass_fields__:
            raise ValueError(unknown("key of a record", key, Goal.__dataclass_fields__))
    goal = Goal(**entry)
    one_of("better", goal.better, ("higher", "lower"))
    return goal


def controls(folder: Path) -> dict[str, Measured]:
    """The measured controls by their names, such as "identity 256, readout 480"."""
    path = folder / CONTROLS
    if not path.is_file():
        return {}
    found = {}
    for row in json.loads(path.read_text("utf-8"))["controls"]:
        name = f"{row['activation']} {row['units']}" + (
            f", readout {row['readout_units']}" * bool(row["readout_units"])
        )
        found[name] = Measured(tuple(100 * run["test"] for run in row["runs"]), CONTROLS, row["parameters"])
    return found


def measured(goal: Goal, sweeps: Sequence[StoredSweep], judged: Mapping[str, Reproduction]) -> Measured | None:
    """What the records have for a goal; None if nothing has been run."""
    if goal.recipe:
        cell = judged[goal.recipe].cells.get((goal.row, goal.column))
        return Measured(tuple(cell.numbers), goal.recipe) if cell is not None and cell.numbers else None
    if not goal.sweep:
        return None
    by_name = {sweep.name: sweep for sweep in sweeps}
    if goal.sweep not in by_name:
        raise ValueError(unknown(f"sweep in {FILE}", goal.sweep, by_name))
    sweep = by_name[goal.sweep]
    point, factor = sweep.points[0], 100 if sweep.judged_by in SHARES else 1
    values = [value for value in point.test if value is not None] or [
        value for value in point.valid if value is not None
    ]
    return Measured(tuple(factor * value for value in values), f"sweep: {point}", point.parameters)


def outcome(goal: Goal, found: Measured | None) -> str:
    """Whether a goal is reached: by the mean of at least five seeds, two standard errors aside."""
    if found is None or goal.goal is None:
        return NOT_RUN
    sign = 1 if goal.better == "higher" else -1
    if sign * (statistics.fmean(found.values) - goal.goal) < 2 * found.error:
        return MISSED
    return REACHED if len(found.values) >= SEEDS else FEW_SEEDS
