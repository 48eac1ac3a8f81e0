"""Compare systems on one task, with the same budget, the same learning rates and the same seeds for each."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from evenflow.checks import whole_number
from evenflow.lab.launches import Here, Launch, LaunchPlace
from evenflow.lab.tasks import Task
from evenflow.lab.training import Run
from evenflow.lab.training.config import build, check_model, config_tables, read_config
from evenflow.lab.training.extend_run import Config, advance
from evenflow.lab.training.fit import earlier_run, train_or_resume
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
    place: LaunchPlace | None = None,
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
        place: where the runs train: `launches.OnRay` for the cores and GPUs of a cluster. Default: this process.
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
    where = Here() if place is None else place
    plans: list[_PlannedAttempt] = []
    for system in systems:
        table = dict(system)
        label = str(table.pop("label", short_name(system_name(table["name"]))))
        for lr in lrs:
            own = {} if math.isnan(lr) else {"lr": lr}
            config = {"task": dict(task), "system": table, "training": dict(training) | own}
            instance, options, settings = read_config(config)
            where.check_device(settings.device)
            name = label.replace(",", "").replace(" ", "-").replace("/", "-")
            check_model(build(instance, options, seed=0), instance, settings)  # all errors before the first run
            runs = _runs(folder / (f"{name}-{lr:g}" if own else name), config, seeds)
            for run in runs:
                earlier_run(*run)
            rate, many = "" if math.isnan(lr) else f", lr {lr:g}", f", {seeds} seeds" if seeds > 1 else ""
            title = f"{len(plans) + 1} of {len(systems) * len(lrs)}: {label}{rate}{many}"
            plans.append(_PlannedAttempt(label, lr, runs, title))
    if len({plan.runs[0][0] for plan in plans}) < len(plans):
        raise ValueError("systems and lrs must differ from each other; give systems of one name a label each")
    with folder_lock(folder):
        _train(plans, until_solved, where, progress, announce)
    attempts: dict[str, list[Attempt]] = {}
    for plan in plans:
        if plan.attempt is not None:
            attempts.setdefault(plan.label, []).append(plan.attempt)
    return [min(tries, key=lambda attempt: attempt.score) for tries in attempts.values()]


@dataclass
class _PlannedAttempt:
    """One system at one learning rate; `attempt` is its outcome."""

    label: str
    lr: float
    runs: list[PlannedRun]
    title: str
    attempt: Attempt | None = None
    waits_for: int = field(init=False)

    def launches(self, together: bool) -> list[Launch]:
        """One launch of all seeds, or one of each."""
        parts = [self.runs] if together else [[run] for run in self.runs]
        self.waits_for = len(parts)
        return [self._launch(part) for part in parts]

    def _launch(self, runs: Sequence[PlannedRun]) -> Launch:
        configs = [config_tables(task, settings, system) for _, task, system, settings in runs]
        updates = sum(settings.for_task(task).steps for _, task, _, settings in runs)
        folders = tuple(folder for folder, *_ in runs)
        return Launch(functools.partial(train_runs, configs), folders, self.title, updates)


def _train(
    plans: Sequence[_PlannedAttempt],
    until_solved: bool,
    place: LaunchPlace,
    progress: bool,
    announce: Callable[[str], None],
) -> None:
    """Train the plans; with `until_solved` those of a system one after the other until the task is solved."""
    together = place.populations(plans[0].runs[0][3].device)
    later: dict[str, list[_PlannedAttempt]] = {}
    for plan in plans:
        later.setdefault(plan.label, []).append(plan)
    plan_of = {run[0]: plan for plan in plans for run in plan.runs}
    said: list[str] = []

    def started(launch: Launch) -> None:
        if launch.title not in said:
            said.append(launch.title)
            announce(launch.title)

    def ended(launch: Launch) -> list[Launch]:
        plan = plan_of[launch.folders[0]]
        plan.waits_for -= 1
        if plan.waits_for:
            return []
        plan.attempt = _attempt(plan.label, plan.lr, plan.runs)
        rest = later[plan.label] if until_solved and not plan.attempt.solved else []
        return rest.pop(0).launches(together) if rest else []

    first = [later[label].pop(0) for label in list(later)] if until_solved else plans
    place.run(
        [launch for plan in first for launch in plan.launches(together)],
        started=started,
        ended=ended,
        progress=progress,
    )


def train_runs(configs: Sequence[Config], folders: Sequence[Path], progress: bool) -> None:
    """Train, resume or read runs: several as a population where they can be one, else one by one."""
    if len(folders) > 1:
        advance(configs, folders)
    for config, folder in zip(configs, folders, strict=True):
        train_or_resume(folder, *read_config(config), progress=progress)


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


def _attempt(label: str, lr: float, runs: Sequence[PlannedRun]) -> Attempt:
    """The outcome of runs that have ended."""
    task = runs[0][1]
    ended = [Run(folder) for folder, *_ in runs]
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
