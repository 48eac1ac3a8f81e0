"""Trains the runs of one row and seed, reads them back, and selects the learning rate that counts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evenflow.lab.data.guarded import LARGEST_RECORD, read_text
from evenflow.lab.tasks import Task
from evenflow.lab.tasks.data_set import DataSet
from evenflow.lab.training import Run, Settings, atomic
from evenflow.lab.training.fit import earlier_run, train_or_resume
from evenflow.lab.training.run_folder import CONFIG

from . import provenance
from .configs import RecipeJob, epochs_to_updates
from .measures import measure_of, needs_training
from .run_data import RunData
from .schema import Recipe

STORED = "measured.json"  # values of costly measures, in the run folder


@dataclass
class RowOutcome:
    """The run that counts for a row and seed, or why there is none.

    Attributes:
        job: the run.
        data: its results; None if its data is missing.
        gap: why there are no results.
        seconds: how long the machine was busy with all learning rates of the search.
        values: measure to value, before the column's factor.
    """

    job: RecipeJob
    data: RunData | None = None
    gap: str = ""
    seconds: float = 0.0
    values: dict[str, float | str] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        return self.data is not None and self.data.diverged


def missing_data(task: Task) -> str:
    """Why the data of a task cannot be read; empty if it can, or if the task reads none."""
    try:
        for part in (task, task.held_out(), task.test()):
            if isinstance(part, DataSet):
                part.count()
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def best_attempt(recipe: Recipe, group: Sequence[RecipeJob]) -> RowOutcome:
    """Of the runs of one row and seed, which have ended, the first that converges, or the best one."""
    attempts: list[RowOutcome] = []
    for job in group:
        attempts.append(_read_attempt(recipe, job))
        data = attempts[-1].data
        if data is not None and ends_search(recipe, data):
            break
    best = min(attempts, key=_rank)
    # All jobs, because learning rates after the best one may have run too, in the same population.
    best.seconds = sum(provenance.machine_seconds(job) for job in group)
    if best.data is not None:
        best.values = measure_columns(recipe, best.data)
    return best


def ends_search(recipe: Recipe, data: RunData) -> bool:
    """Whether no further learning rate is tried after this run."""
    return recipe.search == "until-converged" and (not data.trained or data.converged)


def has_ended(job: RecipeJob) -> bool:
    """Whether a run needs no more training: it has finished, or its loss is not finite."""
    return (job.folder / CONFIG).is_file() and Run(job.folder).ended


def search_ended(recipe: Recipe, group: Sequence[RecipeJob]) -> bool:
    """Whether all runs of a row and seed have ended that `best_attempt` reads."""
    for job in group:
        if not has_ended(job):
            return False
        if ends_search(recipe, RunData(job, job.make_task(), job.folder)):
            return True
    return True


def _rank(outcome: RowOutcome) -> tuple[bool, bool, float]:
    data = outcome.data
    if data is None or not data.trained:
        return (data is None, False, 0.0)
    metric = data.best("valid_metric")
    return (False, data.diverged, math.inf if math.isnan(metric) else -metric if data.task.higher_is_better else metric)


def train_job(planned: RecipeJob, folders: Sequence[Path], progress: bool) -> None:
    """Train or resume a run in the one folder given."""
    job = dataclasses.replace(planned, folder=folders[0])
    run = _settled(job)
    if not has_ended(job):
        provenance.write([job])
        train_or_resume(*run, progress=progress)


def check_folder(job: RecipeJob) -> None:
    """Raise a ValueError if the folder of a run holds one with other settings."""
    if (job.folder / CONFIG).is_file():
        earlier_run(*_settled(job))


def _settled(job: RecipeJob) -> tuple[Path, Task, dict[str, Any], Settings]:
    task = job.make_task()
    config = epochs_to_updates(job.config, task)
    return job.folder, task, config["system"], Settings.from_dict(config["training"])


def _read_attempt(recipe: Recipe, job: RecipeJob) -> RowOutcome:
    task = job.make_task()
    gap = missing_data(task)
    if gap:
        return RowOutcome(job, gap=f"no data: {gap}")
    return RowOutcome(job, RunData(job, task, job.folder if needs_training(recipe) else None))


def _stored(path: Path) -> dict[str, float | str]:
    """The measured values in a file; without it, or if it is damaged, they are measured again."""
    try:
        table = json.loads(read_text(path, LARGEST_RECORD))
        return {name: value if isinstance(value, str) else float(value) for name, value in table.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def measure_columns(recipe: Recipe, data: RunData) -> dict[str, float | str]:
    """The value of every column, before its factor. Values of costly measures are stored in the run folder."""
    path = None if data.run is None else data.run.folder / STORED
    stored = {} if path is None else _stored(path)
    values: dict[str, float | str] = {}
    for column in recipe.columns:
        measure = measure_of(column)
        if data.diverged and not measure.outlives:
            continue
        if column.measure in stored:
            values[column.measure] = stored[column.measure]
            continue
        values[column.measure] = measure.read(data)
        if measure.costly:
            stored[column.measure] = values[column.measure]
            if path is not None:
                atomic.write(path, json.dumps(stored).encode())
    return values
