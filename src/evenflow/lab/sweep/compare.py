"""Compare systems on one task, with the same budget and the same choice of learning rates for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenflow.lab.tasks import Task
from evenflow.lab.training.config import build, check_model, read_config
from evenflow.lab.training.fit import earlier_run, train_or_resume
from evenflow.lab.training.run_writer import folder_lock
from evenflow.lab.training.settings import Settings
from evenflow.runtime.import_path import short_name
from evenflow.systems import system_name


@dataclass(frozen=True)
class Attempt:
    """A run of one system at one learning rate (nan for an optimiser without one): its folder and its outcome.

    `valid_loss` and `valid_metric` are those of its best validation, as on the page of `evenflow report`; nan if
    nothing was validated.
    """

    system: str
    lr: float
    folder: Path
    parameters: int
    valid_loss: float
    valid_metric: float
    solved: bool
    seconds: float
    diverged: bool
    task: Task

    @property
    def score(self) -> tuple[bool, float, float]:
        """The rank of an attempt: runs that did not diverge first, then the better metric, then the lower loss."""
        metric = -self.valid_metric if self.task.higher_is_better else self.valid_metric
        return (self.diverged or math.isnan(metric), metric, self.valid_loss)


def compare(
    task: Mapping[str, Any],
    systems: Sequence[Mapping[str, Any]],
    training: Mapping[str, Any],
    lrs: Sequence[float],
    folder: Path,
    *,
    until_solved: bool = False,
    progress: bool = True,
    announce: Callable[[str], None] = lambda _: None,
) -> list[Attempt]:
    """Train every system at every learning rate, and return the best attempt of each.

    All runs share the task, the budget, the batches and the seed. The best attempt has the best validation, by
    the metric and for equal metrics by the loss; a run that diverges loses that attempt alone.

    Args:
        task, training: tables as in `train`.
        systems: a table for each, with a name and a hidden_size; an optional ``label`` distinguishes two settings of
            one system.
        lrs: the learning rates of every system, in the order in which they are tried.
        folder: gets a run folder for each attempt. After an interruption the same call continues: finished attempts
            are read, interrupted ones resumed. Attempts with other settings raise a ValueError.
        until_solved: a system that has solved the task tries no further learning rate. With falling learning rates
            this is the search of the SGORNN document for the largest one that converges.
        progress: show a progress bar on a terminal.
        announce: called with a sentence before each attempt.

        >>> best = compare({"name": "adding"}, [{"name": "rnn", "hidden_size": 64}], {}, [1e-2, 1e-3], Path("runs/c"))
    """
    if not systems:
        raise ValueError("systems must name at least one system to compare, got none")
    if not lrs:
        raise ValueError("lrs must name at least one learning rate to try, got none")
    if training.get("optimizer") == "hessian-free":
        lrs = [math.nan]  # this optimiser has no learning rate, so there is one attempt
    plans = []
    for system in systems:
        table = dict(system)
        label = str(table.pop("label", short_name(system_name(table["name"]))))
        for lr in lrs:
            own = {} if math.isnan(lr) else {"lr": lr}
            config = {"task": dict(task), "system": table, "training": dict(training) | own}
            instance, options, settings = read_config(config)
            place = label.replace(",", "").replace(" ", "-")
            run = (folder / (f"{place}-{lr:g}" if own else place), instance, options, settings)
            check_model(build(instance, options, seed=0), instance, settings)  # all errors before the first run
            earlier_run(*run)
            plans.append((label, lr, run))
    if len({run[0] for _, _, run in plans}) < len(plans):
        raise ValueError("systems and lrs must differ from each other; give systems of one name a label each")
    attempts: dict[str, list[Attempt]] = {}
    with folder_lock(folder):
        for number, (label, lr, run) in enumerate(plans, 1):
            if until_solved and any(attempt.solved for attempt in attempts.get(label, [])):
                continue
            announce(f"{number} of {len(plans)}: {label}" + ("" if math.isnan(lr) else f", lr {lr:g}"))
            attempts.setdefault(label, []).append(_attempt(label, lr, run, progress))
    return [min(tries, key=lambda attempt: attempt.score) for tries in attempts.values()]


def _attempt(label: str, lr: float, run: tuple[Path, Task, dict[str, Any], Settings], progress: bool) -> Attempt:
    """Train, resume or read one run, given as its folder, task, system and settings."""
    task, ended = run[1], train_or_resume(*run, progress=progress)
    loss, metric = ended.best_validation(task.higher_is_better)
    return Attempt(
        system=label,
        lr=lr,
        folder=ended.folder,
        parameters=int(ended.status.get("parameters", 0)),
        valid_loss=loss,
        valid_metric=metric,
        solved=not ended.diverged and task.solved(metric),
        seconds=0.0 if np.isnan(seconds := ended.last("seconds")) else seconds,
        diverged=ended.diverged,
        task=task,
    )
