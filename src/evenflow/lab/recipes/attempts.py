"""One run after the other: made, resumed or read back, and measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenflow.lab import tasks
from evenflow.lab.tasks import Task
from evenflow.lab.tasks.data_set import DataSet
from evenflow.lab.training import NonFiniteLoss, Run, Settings, atomic, build
from evenflow.lab.training.fit import fit_settings

from . import origin
from .configs import Job, counted
from .evidence import Evidence
from .measures import MEASURES
from .schema import Recipe

KEPT = "measured.json"  # of costly measures, in the run's folder
NOT_FINITE = "infinite or not a number"


@dataclass
class Outcome:
    """The attempt of a row and seed that counts, or why there is none."""

    job: Job
    evidence: Evidence | None = None
    gap: str = ""
    seconds: float = 0.0
    values: dict[str, float | str] = field(default_factory=dict)


def make_task(job: Job) -> Task:
    options = dict(job.config["task"])
    return tasks.make(options.pop("name"), **options)


def missing(task: Task) -> str:
    """Why the data of a task cannot be read; empty where it can, or needs none."""
    try:
        for part in (task, task.held_out(), task.test()):
            if isinstance(part, DataSet):
                part.count()
    except (ValueError, OSError) as error:
        return str(error)
    return ""


def settle(recipe: Recipe, group: Sequence[Job], progress: bool, announce: Callable[[Job], None]) -> Outcome:
    """The rates of one row and seed in turn; the first that solves the task, or the best of all."""
    tries: list[Outcome] = []
    for job in group:
        announce(job)
        tries.append(attempt(recipe, job, progress))
        evidence = tries[-1].evidence
        if recipe.search == "until-solved" and evidence is not None and solves(evidence):
            break
    best = min(tries, key=_rank)
    # Rates behind the first that solves the task may have run as well, beside it.
    best.seconds = sum(origin.machine_seconds(job) for job in group)
    if best.evidence is not None:
        best.values = measure(recipe, best.evidence)
    return best


def solves(evidence: Evidence) -> bool:
    """Whether no further learning rate needs to be tried."""
    if evidence.run is None:
        return True  # a model that is not trained has no rate to search for
    return not evidence.diverged and evidence.task.solved(evidence.best("valid_metric"))


def ended(job: Job) -> bool:
    """Whether a run needs no more training: it has finished, or its loss is not finite."""
    if not (job.folder / "config.toml").is_file():
        return False
    status = Run(job.folder).status
    return status["state"] == "finished" or NOT_FINITE in str(status.get("message", ""))


def settled(recipe: Recipe, group: Sequence[Job]) -> bool:
    """Whether the rates of a row and seed that count have all ended, so that `settle` trains nothing."""
    for job in group:
        if not ended(job):
            return False
        if recipe.search == "until-solved" and solves(Evidence(job, make_task(job), job.folder)):
            return True
    return True


def _rank(outcome: Outcome) -> tuple[bool, bool, float]:
    e = outcome.evidence
    if e is None or e.run is None:
        return (e is None, False, 0.0)
    metric = e.best("valid_metric")
    worst = math.inf if math.isnan(metric) else (-metric if e.task.higher_is_better else metric)
    return (False, e.diverged, worst)


def attempt(recipe: Recipe, job: Job, progress: bool) -> Outcome:
    """One run: made, resumed or read back."""
    task = make_task(job)
    gap = missing(task)
    if gap:
        return Outcome(job, gap=f"no data: {gap}")
    if not any(MEASURES[column.measure].trains for column in recipe.columns):
        return Outcome(job, Evidence(job, task, None))
    config = counted(job.config, task)
    settings = Settings.from_dict(config["training"])
    known = Run(job.folder) if (job.folder / "config.toml").is_file() else None
    if known is not None:
        _same(known, task, config, settings)
    if not ended(job):
        origin.write([job])
        model = build(task, config["system"], settings.seed)
        try:
            resume = known is not None
            fit_settings(model, task, settings, job.folder, system=config["system"], resume=resume, progress=progress)
        except NonFiniteLoss:
            pass  # the run's folder says so, and Evidence reads it there
    return Outcome(job, Evidence(job, task, job.folder))


def _same(known: Run, task: Task, config: dict[str, dict[str, Any]], settings: Settings) -> None:
    """A ValueError if the folder holds a run of other settings; device and data folder are free to change."""

    def without(table: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in table.items() if key != "data"}

    differs = Settings.from_dict(known.config.get("training", {})).difference(settings)
    for name, table in (("task", {"name": task.name, **task.options()}), ("system", config["system"])):
        if without(known.config.get(name, {})) != without(table):
            differs = name
    if differs is not None:
        raise ValueError(
            f"folder {str(known.folder)!r} holds a run with another {differs} than the recipe has: "
            "remove it or choose another folder"
        )


def measure(recipe: Recipe, evidence: Evidence) -> dict[str, float | str]:
    """Every column's value, before its factor; costly ones are kept in the run's folder."""
    path = None if evidence.run is None else evidence.run.folder / KEPT
    kept = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}
    values: dict[str, float | str] = {}
    for column in recipe.columns:
        kind = MEASURES[column.measure]
        if evidence.diverged and not kind.outlives:
            continue
        if column.measure not in kept:
            value = kind.read(evidence)
            if not kind.costly:
                values[column.measure] = value
                continue
            kept[column.measure] = value
            if path is not None:
                atomic.write(path, json.dumps(kept).encode())
        values[column.measure] = kept[column.measure]
    return values
