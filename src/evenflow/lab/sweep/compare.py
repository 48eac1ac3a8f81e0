"""Compare systems on one task, with the same budget, the same learning rates and the same seeds for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from evenflow.checks import whole_number
from evenflow.lab.tasks import Task
from evenflow.lab.training import Run
from evenflow.lab.training.config import build, check_model, config_tables, read_config
from evenflow.lab.training.extend_run import advance
from evenflow.lab.training.fit import earlier_run, train_or_resume
from evenflow.lab.training.launch import uses_gpu
from evenflow.lab.training.run_folder import CONFIG
from evenflow.lab.training.run_writer import folder_lock
from evenflow.lab.training.seed_folders import seed_folder, seed_runs
from evenflow.lab.training.settings import Settings
from evenflow.runtime.import_path import short_name
from evenflow.systems import system_name

PlannedRun = tuple[Path, Task, dict[str, Any], Settings]


@dataclass(frozen=True)
class Attempt:
    """The runs of one system at one learning rate (nan for an optimiser without one), one for each seed.

    `valid_loss` and `valid_metric` are means over the seeds of their best validations, as on the page of `evenflow
    report`; nan if a seed diverged before its first.
    """

    system: str
    lr: float
    folders: tuple[Path, ...]
    parameters: int
    valid_loss: float
    valid_metric: float
    solved: bool
    seconds: float
    diverged: bool
    task: Task

    @property
    def folder(self) -> Path:
        """The run of the first seed."""
        return self.folders[0]

    @property
    def score(self) -> tuple[bool, float, float]:
        """The rank of an attempt: first those of which no seed diverged, then by the metric, then by the loss."""
        metric = -self.valid_metric if self.task.higher_is_better else self.valid_metric
        return (self.diverged or math.isnan(metric), metric, self.valid_loss)


def compare(
    task: Mapping[str, Any],
    systems: Sequence[Mapping[str, Any]],
    training: Mapping[str, Any],
    lrs: Sequence[float],
    folder: Path,
    *,
    seeds: int = 1,
    until_solved: bool = False,
    progress: bool = True,
    announce: Callable[[str], None] = lambda _: None,
) -> list[Attempt]:
    """Train every system at every learning rate with every seed, and return the best attempt of each system.

    All systems share the task, the budget, the seeds and, seed by seed, the batches. The best attempt has the best mean
    validation over the seeds, by the metric and for equal metrics by the loss; one that diverges loses to all others.

    Args:
        task, training: tables as in `train`.
        systems: a table for each, with a name and a hidden_size; an optional ``label`` distinguishes two settings of
            one system.
        lrs: the learning rates of every system, in the order in which they are tried.
        folder: gets a run folder for each attempt, or a folder of the runs of its seeds. After an interruption the same
            call continues: finished runs are read, interrupted ones resumed. Runs with other settings raise a
            ValueError.
        seeds: train each attempt with this many seeds, beginning with the seed of `training`.
        until_solved: a system that has solved the task with all seeds tries no further learning rate. With falling
            learning rates this is the search of the SGORNN document for the largest one that converges.
        progress: show a progress bar on a terminal.
        announce: called with a sentence before each attempt.

        >>> best = compare({"name": "adding"}, [{"name": "rnn", "hidden_size": 64}], {}, [1e-2, 1e-3], Path("runs/c"))
    """
    if not systems:
        raise ValueError("systems must name at least one system to compare, got none")
    if not lrs:
        raise ValueError("lrs must name at least one learning rate to try, got none")
    whole_number("seeds", seeds, 1)
    if training.get("optimizer") == "hessian-free":
        lrs = [math.nan]  # this optimiser has no learning rate, so there is one attempt
    plans: list[tuple[str, float, list[PlannedRun]]] = []
    for system in systems:
        table = dict(system)
        label = str(table.pop("label", short_name(system_name(table["name"]))))
        for lr in lrs:
            own = {} if math.isnan(lr) else {"lr": lr}
            config = {"task": dict(task), "system": table, "training": dict(training) | own}
            instance, options, settings = read_config(config)
            place = label.replace(",", "").replace(" ", "-").replace("/", "-")
            check_model(build(instance, options, seed=0), instance, settings)  # all errors before the first run
            runs = _runs(folder / (f"{place}-{lr:g}" if own else place), config, seeds)
            for run in runs:
                earlier_run(*run)
            plans.append((label, lr, runs))
    if len({runs[0][0] for *_, runs in plans}) < len(plans):
        raise ValueError("systems and lrs must differ from each other; give systems of one name a label each")
    attempts: dict[str, list[Attempt]] = {}
    with folder_lock(folder):
        for number, (label, lr, runs) in enumerate(plans, 1):
            if until_solved and any(attempt.solved for attempt in attempts.get(label, [])):
                continue
            rate, many = "" if math.isnan(lr) else f", lr {lr:g}", f", {seeds} seeds" if seeds > 1 else ""
            announce(f"{number} of {len(plans)}: {label}{rate}{many}")
            attempts.setdefault(label, []).append(_attempt(label, lr, runs, progress))
    return [min(tries, key=lambda attempt: attempt.score) for tries in attempts.values()]


def _runs(place: Path, config: Mapping[str, Any], seeds: int) -> list[PlannedRun]:
    """The runs of an attempt: in its folder, or for several seeds in folders of their own inside it."""
    single, several = (place / CONFIG).is_file(), bool(seed_runs(place))
    if (seeds > 1 and single) or (seeds == 1 and several):
        there = "a run of a single seed" if single else "runs of several seeds"
        raise ValueError(f"folder {str(place)!r} holds {there}, got seeds {seeds}: choose another folder")
    first = Settings.from_dict(config["training"]).seed
    places = [place] if seeds == 1 else [seed_folder(place, seed) for seed in range(first, first + seeds)]
    runs = []
    for seed, where in enumerate(places, first):
        run = {**config, "training": {**config["training"], "seed": seed}}
        runs.append((where, *read_config(run)))
    return runs


def _attempt(label: str, lr: float, runs: Sequence[PlannedRun], progress: bool) -> Attempt:
    """Train, resume or read the runs of an attempt."""
    task, settings = runs[0][1], runs[0][3]
    if len(runs) > 1 and uses_gpu(settings.device):  # side by side; what cannot be is trained below
        advance([config_tables(one, own, system) for _, one, system, own in runs], [run[0] for run in runs])
    ended: list[Run] = [train_or_resume(*run, progress=progress) for run in runs]
    validations = [run.best_validation(task.higher_is_better) for run in ended]
    seconds = [run.last("seconds") for run in ended]
    diverged = any(run.diverged for run in ended)
    return Attempt(
        system=label,
        lr=lr,
        folders=tuple(run.folder for run in ended),
        parameters=int(ended[0].status.get("parameters", 0)),
        valid_loss=fmean(loss for loss, _ in validations),
        valid_metric=fmean(metric for _, metric in validations),
        solved=not diverged and all(task.solved(metric) for _, metric in validations),
        seconds=sum(each for each in seconds if not math.isnan(each)),
        diverged=diverged,
        task=task,
    )
