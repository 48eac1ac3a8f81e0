"""Several systems on one task, each with the same budget and the same choice of learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenflow.lab.training.config import (
    build,
    check_data,
    check_model,
    check_same,
    config_tables,
    read_config,
)
from evenflow.lab.training.fit import resume, train
from evenflow.lab.training.run_folder import Run
from evenflow.lab.training.run_writer import folder_lock
from evenflow.lab.training.stopping import NonFiniteLoss


@dataclass(frozen=True)
class Attempt:
    """One system at one learning rate, nan where it finds its own: where the run lies and how it ended."""

    system: str
    lr: float
    folder: Path
    parameters: int
    valid_loss: float
    valid_metric: float
    solved: bool
    seconds: float
    diverged: bool

    @property
    def score(self) -> tuple[bool, float]:
        """What attempts are ranked by: a run that ended well first, then the lower validation loss."""
        return (self.diverged or self.valid_loss != self.valid_loss, self.valid_loss)


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
    """Train every system at every rate, and return the best attempt of each.

    All runs share the task, the budget, the batches and the seed. A system is judged by the validation loss at its last
    step, at the rate that suits it best; one that diverges loses that attempt and nothing else.

    Args:
        task, training: tables as in `train`.
        systems: one table each, with a name and a hidden_size; an optional ``label`` tells two settings of one system
            apart.
        lrs: the learning rates every system may try, in this order.
        until_solved: a system that has solved the task tries no further rate. With falling rates this is the search of
            the SGORNN document for the largest rate that converges.
        folder: gets one run folder per attempt. Attempts already finished there are read back, interrupted ones
            resumed, so that a comparison can be stopped and started again; those of other settings are refused.
        announce: told about each attempt before it starts.

        >>> best = compare({"name": "adding"}, [{"name": "rnn", "hidden_size": 64}], {}, [1e-2, 1e-3], Path("runs/c"))
    """
    if not systems:
        raise ValueError("systems must name at least one system to compare, got none")
    if not lrs:
        raise ValueError("lrs must name at least one learning rate to try, got none")
    if training.get("optimizer") == "hessian-free":
        lrs = [math.nan]  # it finds its own, so there is one attempt
    plans = []
    for system in systems:
        table = dict(system)
        label = str(table.pop("label", table["name"]))
        for lr in lrs:
            own = {} if math.isnan(lr) else {"lr": lr}
            config = {"task": dict(task), "system": table, "training": dict(training) | own}
            made, made_of, settings = read_config(config)
            check_model(build(made, made_of, seed=0), made, settings)  # one slip should not cost the runs before it
            plans.append((label, lr, config, folder / (f"{label}-{lr:g}" if own else label)))
            _earlier_run(plans[-1][3], config)
    if len({plan[3] for plan in plans}) < len(plans):
        raise ValueError("systems and lrs must differ from each other; give systems of one name a label each")
    attempts: dict[str, list[Attempt]] = {}
    with folder_lock(folder):
        for number, (label, lr, config, run) in enumerate(plans, 1):
            if until_solved and any(attempt.solved for attempt in attempts.get(label, [])):
                continue
            announce(f"{number} of {len(plans)}: {label}" + ("" if math.isnan(lr) else f", lr {lr:g}"))
            attempts.setdefault(label, []).append(_attempt(label, lr, config, run, progress))
    return [min(tries, key=lambda attempt: attempt.score) for tries in attempts.values()]


def _attempt(label: str, lr: float, config: Mapping[str, Any], folder: Path, progress: bool) -> Attempt:
    """Train, resume or read one run."""
    task = read_config(config)[0]
    earlier = _earlier_run(folder, config)
    try:
        if earlier is None:
            train(config, folder, progress=progress)
        elif earlier.status.get("state") != "finished" and not earlier.diverged:
            resume(folder, data=task.options().get("data"), progress=progress)
    except NonFiniteLoss:
        pass  # an outcome, which the run folder holds
    run = Run(folder)
    return Attempt(
        system=label,
        lr=lr,
        folder=folder,
        parameters=int(run.status.get("parameters", 0)),
        valid_loss=run.last("valid_loss"),
        valid_metric=run.last("valid_metric"),
        solved=not run.diverged and task.solved(run.last("valid_metric")),
        seconds=0.0 if np.isnan(seconds := run.last("seconds")) else seconds,
        diverged=run.diverged,
    )


def _earlier_run(folder: Path, config: Mapping[str, Any]) -> Run | None:
    """The run in this folder, None if there is none; a ValueError if it has another config."""
    if not (folder / "config.toml").is_file():
        return None
    run = Run(folder)
    task, system, settings = read_config(config)
    table = config_tables(task, settings, system)
    check_data(run, task, table)
    try:
        check_same(run, table, settings)
    except ValueError as error:
        raise ValueError(f"{error}: choose another folder") from None
    before, now = run.config.get("system"), table["system"]
    if before != now:
        raise ValueError(
            f"system must stay as the run {str(folder)!r} began, {before}, got {now}: choose another folder"
        )
    return run
