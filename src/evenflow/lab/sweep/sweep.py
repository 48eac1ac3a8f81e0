"""The best point of map × cell × activation for a task, by successive halving under a budget."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evenflow.lab import tasks
from evenflow.lab.training.launch import check_device
from evenflow.lab.training.run_writer import folder_lock
from evenflow.lab.training.settings import Settings
from evenflow.lab.training.stopping import TimeUp, time_limit

from .candidates import Axes, Omitted, Point, candidates
from .halving import Round, Rules, plan
from .leaderboard import Standing
from .sweep_record import SweepRecord
from .sweep_rounds import Rounds, alike

# What a sweep decides for each run, and what would end one before its round or keep it from a population.
ITS_OWN = ("steps", "epochs", "optimizer", "lr", "schedule", "decay", "decay_every")
NOT_HERE = ("patience", "stop_when_solved", "penalty", "tensorboard")


@dataclass(frozen=True)
class Sweep:
    """What a sweep found.

    Attributes:
        standings: every point, best first: who got further, and there who validated better.
        omitted: models that were no candidates.
        rounds: the rounds held.
        metric_name: what `valid_metric` is.
        updates, seconds: spent, over all sittings, also by runs that were stopped in the middle of a round.
        finished: whether the budget is spent; if not, time ran out and the same call goes on.
        folder: runs and sweep.json.
    """

    standings: tuple[Standing, ...]
    omitted: tuple[Omitted, ...]
    rounds: tuple[Round, ...]
    metric_name: str
    updates: int
    seconds: float
    finished: bool
    folder: Path

    @property
    def best(self) -> Standing:
        return self.standings[0]


def sweep(
    task: Mapping[str, Any],
    axes: Axes,
    rules: Rules,
    folder: str | os.PathLike[str],
    *,
    parameters: int | None = None,
    training: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    progress: bool = True,
    announce: Callable[[str], None] = lambda _: None,
) -> Sweep:
    """Find the best point of the axes for a task.

    All candidates train for a few updates, the better share goes on, and so forth until the budget is spent; see
    `Rules`. Points are judged by their best validation. Those of one shape train as one population on a GPU, and one by
    one on a CPU. One that diverges is out.

    Args:
        task: a table as in `train`.
        axes: what is tried.
        rules: how the budget of updates is spent.
        folder: gets one run folder per point and seed, and sweep.json. Killed or stopped, the same call goes on there.
        parameters: the most trained numbers of a whole model; None for no limit.
        training: settings for all runs, as ``{"batch_size": 50, "clip_norm": 1.0}``. Validations and checkpoints come
            every ``rules.first`` updates unless it says otherwise.
        seconds: stop after this time; the same call goes on.
        progress: show a bar on a terminal.
        announce: told about each round.

    Raises:
        ValueError: an argument will not do; nothing has been written.
        NonFiniteLoss: all points diverged.

        >>> found = sweep({"name": "digits"}, Axes(hidden=[32]), Rules(updates=20000, first=100), "runs/sweep-digits")
        >>> found.best.point.name, found.best.valid_metric
    """
    began = time.monotonic()
    options = dict(task)
    if "name" not in options:
        raise ValueError(f"task must be a table with a name, got {options}")
    made = tasks.make(options.pop("name"), **options)
    settings = _settings(axes, rules, dict(training or {}))
    made.batch(1, torch.Generator().manual_seed(0))  # its data is there
    points, omitted = candidates(made, axes, parameters)
    planned = plan(len(points), rules)
    request = {
        "task": {"name": made.name} | {name: value for name, value in made.options().items() if name != "data"},
        "parameters": parameters,
        **dataclasses.asdict(axes),
        **dataclasses.asdict(rules),
        "training": {name: value for name, value in settings.items() if name != "device"},
    }
    with suppress(TimeUp), time_limit(seconds, began), folder_lock(Path(folder)):
        record = SweepRecord(Path(folder), request)
        rounds = Rounds(made, dict(task), points, omitted, rules, settings, record, began, progress, announce)
        announce(_counted(points, omitted))
        announce("The plan: " + ", ".join(f"{each.points} to {each.until:,} updates" for each in planned) + ".")
        rounds.hold_all()
    return Sweep(
        standings=tuple(rounds.standings()),
        omitted=tuple(omitted),
        rounds=tuple(each.round for each in record.held),
        metric_name=made.metric_name,
        updates=rounds.made(),
        seconds=record.seconds + time.monotonic() - began,
        finished=rounds.over,
        folder=record.folder,
    )


def _settings(axes: Axes, rules: Rules, training: dict[str, Any]) -> dict[str, Any]:
    """The settings that all runs share; a ValueError names one that a sweep has no use for."""
    for name in (*ITS_OWN, *NOT_HERE):
        if name in training:
            raise ValueError(f"{name} must be left to the sweep, got {training[name]!r}")
    shared: dict[str, Any] = {
        "validate_every": rules.first,
        "checkpoint_every": rules.first,
        "device": "auto",
        "seed": 0,
    }
    shared |= training
    for optimizer, lr in itertools.product(axes.optimizers, axes.lrs):
        Settings.from_dict(shared | {"optimizer": optimizer, "lr": lr})
    check_device(shared["device"])
    return shared


def _counted(points: list[Point], omitted: list[Omitted]) -> str:
    large = sum(each.parameters is not None for each in omitted)
    left_out = [f"{large} over the limit"] * (large > 0)
    left_out += [f"{len(omitted) - large} that cannot be made"] * (len(omitted) > large)
    words = f"; left out: {' and '.join(left_out)}" if omitted else ""
    unmade: dict[str, Omitted] = {}
    for each in omitted:
        if each.parameters is None:
            unmade.setdefault(each.reason, each)
    why = "".join(f"\n  {each.map} {each.cell} {each.activation}: {reason}" for reason, each in unmade.items())
    return f"{len(points)} candidates, {len(alike(points))} models{words}.{why}"
