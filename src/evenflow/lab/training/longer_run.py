"""Give a run more updates than it began with, and start a run from the weights of another."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from evenflow.checks import whole_number
from evenflow.lab.tasks import Task

from .changed_config import replace_config, with_changes
from .checkpoint import load_weights, versions
from .run_folder import CHECKPOINT, Run
from .schedules import OF_LENGTH, lr_factor
from .settings import Settings


def longer_config(run: Run, steps: int) -> dict[str, Any]:
    """The config of a run with `steps` updates in place of fewer.

    Raises:
        ValueError: the run has as many already, or stopped early.
    """
    whole_number("steps", steps, 1)
    config, name = run.config, repr(str(run.folder))
    training, made = dict(config.get("training", {})), updates_of(run)
    before = made if "epochs" in training else max(made, Settings.from_dict(training).steps)
    if run.status.get("stopped_early"):
        raise ValueError(
            f"run {name} stopped early at step {made} and has no more updates to make: train another from its weights "
            f"(--from)"
        )
    if steps <= before:
        raise ValueError(f"steps must be more than the {before} of run {name}, got {steps}")
    training.pop("epochs", None)
    return {**config, "training": training | {"steps": steps}}


def lengthen(run: Run, config: Mapping[str, Any], task: Task) -> None:
    """Write the config that `longer_config` made; a warning says what a different length means for the run."""
    settings, made = Settings.from_dict(config["training"]), updates_of(run)
    if settings.schedule in OF_LENGTH:
        s = settings
        lr = s.lr * lr_factor(s.schedule, made, s.steps, s.decay, s.decay_every, s.warmup)
        warnings.warn(
            f"schedule {s.schedule} depends on the number of updates: the learning rate goes on at {lr:.3g}, as in a "
            f"run of {s.steps} updates, although the first {made} were made for an earlier end",
            stacklevel=2,
        )
    if type(task).at_step is not Task.at_step:
        warnings.warn(
            f"task {task.name} depends on the number of updates: it goes on as in a run of {settings.steps}",
            stacklevel=2,
        )
    replace_config(run.folder, with_changes(run.config, config))


def updates_of(run: Run) -> int:
    """The updates that a run has made, as its status says."""
    return int(run.status.get("step", 0))


def start_weights(model: nn.Module, settings: Settings, folder: str | os.PathLike[str] | None, resume: bool) -> None:
    """Give the model the best weights of the run that it starts from, if there is one; a resumed run has its own."""
    if settings.start_from is None:
        return
    if resume and folder is not None and versions(Path(folder) / CHECKPOINT):
        return
    load_weights(model, Run(settings.start_from).weights("best"), f"run {settings.start_from!r}")
