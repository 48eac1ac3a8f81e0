"""Runs taken further than they were meant to go: made, resumed, lengthened or read back, alone or side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import atomic
from .fit import fit_settings
from .non_finite import NonFiniteLoss, diverged
from .population import train_population
from .run_folder import CONFIG, Run
from .settings import Settings
from .train import build, read_config

Config = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Score:
    """How far a run came and how good its best validation was; `reason` says why it ended before its time."""

    seed: int
    updates: int
    valid_metric: float
    valid_loss: float
    test_metric: float
    seconds: float
    reason: str = ""


def advance(configs: Sequence[Config], folders: Sequence[Path]) -> None:
    """Bring each run to the step that its config names, or to its divergence, and leave how it went in its folder.

    A run that has ended at fewer steps goes on with the weights, the optimiser and the batches it would have had: with
    a constant rate the result is that of a run that was long from the beginning. A run that is further already is left
    alone. On a GPU runs alike in shape train as one population; on a CPU, where that gains nothing, one by one.

    Args:
        configs: as for `train`, of one shape, differing in lr, optimiser and seed.
        folders: one for each.
    """
    runs = list(zip(configs, folders, strict=True))
    if _pays(configs[0]):
        for known in (False, True):
            ready = [run for run in runs if not _ended(*run) and (run[1] / CONFIG).is_file() is known]
            if len(ready) > 1:
                _together(ready, known)
    for config, folder in runs:
        if not _ended(config, folder):
            _alone(config, folder)


def read_score(folder: Path, seed: int) -> Score:
    """What a run that `advance` has seen to came to."""
    run = Run(folder)
    status, columns = run.status, run.metrics
    seconds = columns["seconds"]
    return Score(
        seed=seed,
        updates=int(status["step"]),
        valid_metric=float(status.get("best_metric", math.nan)),
        valid_loss=float(status.get("best_loss", math.nan)),
        test_metric=float(status.get("test_metric", math.nan)),
        seconds=float(seconds[-1]) if len(seconds) else 0.0,
        reason="" if status["state"] == "finished" else str(status.get("message", "")),
    )


def reached(folder: Path) -> int:
    """The step that a run stands at, 0 where none has begun."""
    return int(Run(folder).status.get("step", 0)) if (folder / CONFIG).is_file() else 0


def _ended(config: Config, folder: Path) -> bool:
    """Whether there is nothing left to do for this run."""
    if not (folder / CONFIG).is_file():
        return False
    run = Run(folder)
    status, wanted = run.status, config["training"]["steps"]
    if diverged(status):
        return True
    # Killed between its config's change and its first update, a lengthened run still says that it has finished.
    return run.config["training"]["steps"] > wanted or (status["state"] == "finished" and status["step"] >= wanted)


def _lengthen(config: Config, folder: Path) -> None:
    """Let the run's own config say how far it goes, how its rate falls and where the data now lies."""
    import tomli_w

    known = Run(folder).config
    training = {name: config["training"][name] for name in ("steps", "schedule")}
    task = {name: value for name, value in config["task"].items() if name == "data"}
    table = known | {"task": known["task"] | task, "training": known["training"] | training}
    if table != known:
        atomic.write(folder / CONFIG, tomli_w.dumps(table).encode())


def _together(runs: Sequence[tuple[Config, Path]], known: bool) -> None:
    """A population, as far as the models and the memory allow; what they do not is left to be done one by one."""
    if known:
        for config, folder in runs:
            _lengthen(config, folder)
    with suppress(ValueError, torch.OutOfMemoryError):
        configs, folders = zip(*runs, strict=True)
        train_population(configs, folders, resume=known, progress=False)


def _alone(config: Config, folder: Path) -> None:
    known = (folder / CONFIG).is_file()
    if known:
        _lengthen(config, folder)
    task, system, settings = read_config(config)
    model = build(task, system, settings.seed)
    with suppress(NonFiniteLoss, torch.OutOfMemoryError):  # an outcome: the run's folder says which
        fit_settings(model, task, settings, folder, config={"system": dict(system)}, resume=known, progress=False)


def _pays(config: Config) -> bool:
    """Whether a population is faster: on a GPU, where small models wait for launches."""
    device = Settings.from_dict(config["training"]).device
    return torch.cuda.is_available() and device.startswith(("auto", "cuda"))
