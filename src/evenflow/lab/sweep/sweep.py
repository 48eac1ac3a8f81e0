"""Find the best map, cell and activation for a task by successive halving under a budget of updates."""

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
from evenflow.lab.launches import Here, LaunchPlace
from evenflow.lab.training.run_writer import folder_lock
from evenflow.lab.training.settings import Settings
from evenflow.lab.training.stopping import TimeUp, time_limit

from .candidates import Axes, Omitted, Point, candidates
from .halving import Round, Rules, plan
from .leaderboard import Standing
from .sweep_record import SweepRecord
from .sweep_rounds import SweepRounds, same_model

# Settings that a sweep chooses for each run, and settings that would end a run early or exclude it from a population.
CHOSEN_SETTINGS = (
    *("steps", "epochs", "optimizer", "lr", "schedule", "warmup", "decay", "decay_every", "decay_patience"),
)
EXCLUDED_SETTINGS = ("patience", "stop_when_solved", "penalty", "logger", "start_from")


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep.

    Attributes:
        standings: all points, best first: those with more updates first, then those with the better validation.
        omitted: models that were no candidates.
        rounds: the rounds so far.
        metric_name: the name of `valid_metric`.
        updates, seconds: spent in all sessions, also on runs that were stopped in the middle of a round.
        finished: whether the budget is spent; if not, the time ran out and the same call continues.
        folder: the folder of the runs and sweep.json.
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
    place: LaunchPlace | None = None,
    progress: bool = True,
    announce: Callable[[str], None] = lambda _: None,
) -> Sweep:
    """Find the best point of the axes for a task.

    All points train for a few updates, the better ones for more, and so on until the budget is spent; see `Rules`.
    Points are ranked by their best validation; a point that diverges is out. Points of one shape train as one
    population on a GPU, and one by one on a CPU.

    Args:
        task: a table as in `train`.
        axes: the points.
        rules: how the budget of updates is spent.
        folder: gets one run folder per point and seed, and sweep.json. After an interruption the same call continues.
        parameters: the largest number of trained parameters of a model; None for no limit.
        training: settings of all runs, such as ``{"batch_size": 50, "clip_norm": 1.0}``. By default runs are validated
            and saved every ``rules.first`` updates.
        seconds: stop after this time; the same call continues.
        place: where the runs train: `launches.OnRay` for the cores and GPUs of a cluster. Default: this process.
        progress: show a progress bar on a terminal.
        announce: called with a sentence for each round.

    Raises:
        ValueError: an argument is not allowed; nothing has been written.
        NonFiniteLoss: all points diverged.

        >>> result = sweep({"name": "digits"}, Axes(hidden=[32]), Rules(updates=20000, first=100), "runs/sweep-digits")
        >>> result.best.point.name, result.best.valid_metric
    """
    began = time.monotonic()
    options = dict(task)
    if "name" not in options:
        raise ValueError(f"task must be a table with a name, got {options}")
    instance = tasks.make(options.pop("name"), **options)
    where = Here() if place is None else place
    settings = _settings(axes, rules, dict(training or {}))
    where.check_device(settings["device"])
    instance.batch(1, torch.Generator().manual_seed(0))  # an error if its data is missing
    points, omitted = candidates(instance, axes, parameters)
    planned = plan(len(points), rules)
    request = {
        "task": {"name": instance.reference}
        | {name: value for name, value in instance.options().items() if name != "data"},
        "parameters": parameters,
        **dataclasses.asdict(axes),
        **dataclasses.asdict(rules),
        "training": {name: value for name, value in settings.items() if name != "device"},
    }
    with suppress(TimeUp), time_limit(seconds, began), folder_lock(Path(folder)):
        record = SweepRecord(Path(folder), request)
        rounds = SweepRounds(
            instance, dict(task), points, omitted, rules, settings, record, began, progress, announce, where
        )
        announce(_counted(points, omitted))
        announce("The plan: " + ", ".join(f"{each.points} to {each.until:,} updates" for each in planned) + ".")
        rounds.run()
    return Sweep(
        standings=tuple(rounds.standings()),
        omitted=tuple(omitted),
        rounds=tuple(each.round for each in record.rounds),
        metric_name=instance.metric_name,
        updates=rounds.updates_made(),
        seconds=record.seconds + time.monotonic() - began,
        finished=rounds.over,
        folder=record.folder,
    )


def _settings(axes: Axes, rules: Rules, training: dict[str, Any]) -> dict[str, Any]:
    """The settings that all runs share; a ValueError names a setting that a sweep does not allow."""
    for name in (*CHOSEN_SETTINGS, *EXCLUDED_SETTINGS):
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
    return f"{len(points)} candidates, {len(same_model(points))} models{words}.{why}"
