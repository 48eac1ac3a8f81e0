"""Train runs to a step beyond their first end: start, resume or extend them, one by one or as a population."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import checkpoint
from .changed_config import replace_config, with_changes
from .config import build, read_config
from .fit import fit_settings
from .launch import uses_gpu
from .recovery import find_start
from .run_folder import CHECKPOINT, CONFIG, Run
from .settings import Settings
from .stopping import NonFiniteLoss
from .train_population import train_population

Config = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Score:
    """The updates that a run has made and its best validation; `reason` says why it diverged."""

    seed: int
    updates: int
    valid_metric: float
    valid_loss: float
    test_metric: float
    seconds: float
    reason: str = ""


def advance(configs: Sequence[Config], folders: Sequence[Path]) -> None:
    """Train each run to the last step of its config, or until it diverges; the outcome is in its folder.

    A run that finished at fewer steps continues with the weights, optimiser and batches it would have had: with a
    constant learning rate the result is that of a run with more steps from the start. A run beyond that step stays as
    it is. On a GPU runs of one shape train as a population; on a CPU, where a population is not faster, one by one.

    Args:
        configs: as for `train`, of one shape, differing in lr, optimiser and seed.
        folders: one for each.
    """
    runs = list(zip(configs, folders, strict=True))
    for config, folder in runs:
        if (folder / CONFIG).is_file() and not _ended(config, folder):
            _repeat_end(config, folder)
    if uses_gpu(Settings.from_dict(configs[0]["training"]).device):
        for resume in (False, True):
            ready = [run for run in runs if not _ended(*run) and (run[1] / CONFIG).is_file() is resume]
            if len(ready) > 1:
                _advance_population(ready, resume)
    for config, folder in runs:
        if not _ended(config, folder):
            _advance_one(config, folder)


def read_score(folder: Path, seed: int) -> Score:
    """The score of a run that `advance` has trained."""
    run = Run(folder)
    status, seconds = run.status, run.last("seconds")
    return Score(
        seed=seed,
        updates=int(status["step"]),
        valid_metric=float(status.get("best_metric", math.nan)),
        valid_loss=float(status.get("best_loss", math.nan)),
        test_metric=float(status.get("test_metric", math.nan)),
        seconds=0.0 if math.isnan(seconds) else seconds,
        reason="" if status["state"] == "finished" else str(status.get("message", "")),
    )


def updates_made(folder: Path) -> int:
    """The updates of a run, 0 if it has not started."""
    return int(Run(folder).status.get("step", 0)) if (folder / CONFIG).is_file() else 0


def _ended(config: Config, folder: Path) -> bool:
    """Whether the run needs no further updates."""
    if not (folder / CONFIG).is_file():
        return False
    run = Run(folder)
    status, steps = run.status, config["training"].get("steps", 0)  # a run of epochs is not extended
    if run.diverged:
        return True
    # A run that is killed between the change of its config and its first update still has the status finished.
    return run.config["training"].get("steps", 0) > steps or (status["state"] == "finished" and status["step"] >= steps)


def _repeat_end(config: Config, folder: Path) -> None:
    """Make the last updates of an earlier, shorter config again if their checkpoint is damaged.

    Under the longer config they would have other learning rates and no validation at the earlier end.
    """
    start = find_start(folder / CHECKPOINT)
    saved = None if start is None else checkpoint.load(folder / CHECKPOINT, start.version)
    if saved is None or saved.config is None:
        return
    earlier = Settings.from_dict(saved.config["training"])
    if saved.step < earlier.steps < config["training"].get("steps", 0):
        replace_config(folder, saved.config)
        shorter = {**config, "training": saved.config["training"]}
        _extend(shorter, folder)  # the data may have moved
        _train(shorter, folder, resume=True)


def _extend(config: Config, folder: Path) -> None:
    """Write the new last step and schedule, and where the data lies now, to the config of a run."""
    before = Run(folder).config
    training = {name: config["training"][name] for name in ("steps", "schedule") if name in config["training"]}
    task = {name: value for name, value in config["task"].items() if name == "data"}
    table = before | {"task": before["task"] | task, "training": before["training"] | training}
    if table != before:
        replace_config(folder, with_changes(before, table))


def _advance_population(runs: Sequence[tuple[Config, Path]], resume: bool) -> None:
    """Train a population if the models and the memory allow it; otherwise the runs are left to `_advance_one`."""
    if resume:
        for config, folder in runs:
            _extend(config, folder)
    with suppress(ValueError, torch.OutOfMemoryError):
        configs, folders = zip(*runs, strict=True)
        train_population(configs, folders, resume=resume, progress=False)


def _advance_one(config: Config, folder: Path) -> None:
    resume = (folder / CONFIG).is_file()
    if resume:
        _extend(config, folder)
    _train(config, folder, resume)


def _train(config: Config, folder: Path, resume: bool) -> None:
    task, system, settings = read_config(config)
    model = build(task, system, settings.seed)
    with suppress(NonFiniteLoss, torch.OutOfMemoryError):  # these are outcomes, which the run folder holds
        fit_settings(model, task, settings, folder, system=system, resume=resume, progress=False)
