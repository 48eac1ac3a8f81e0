"""Where a run goes on from: a version of its checkpoint, and best weights that belong to it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from . import checkpoint
from .checkpoint import BEST, Checkpoint


class Start(NamedTuple):
    """Where to go on from.

    Attributes:
        version: of the checkpoint.
        best: whether the file of the best weights is to be read.
        awaited: a later step with a best validation that the run has seen and comes to again; None if there is none.
    """

    version: str
    best: bool
    awaited: int | None


def find_start(folder: Path) -> Start | None:
    """Where the run of a checkpoint folder goes on from, None if it has to begin; a warning says what was damaged.

    Best weights that are damaged or gone are taken from the version of their step, or found again from a version before
    it, which becomes the latest: only the process that goes on with the run may call this. Where neither is left, a
    ValueError says so.
    """
    name = checkpoint.find(folder)
    if name is None:
        return None
    saved = checkpoint.load(folder, name)
    known = saved.state["best"]
    if known["step"] is None:
        return Start(name, False, None)
    try:
        return Start(name, True, _later(folder, saved) or known.get("awaited"))
    except ValueError as error:
        problem = str(error)
    if known.get("awaited") is not None:  # gone back already, and not yet come to that step
        return Start(name, False, known["awaited"])
    good = [version for version in checkpoint.versions(folder) if checkpoint.intact(folder / version)]
    for other in good:
        older = checkpoint.load(folder, other)
        if older.step == known["step"]:
            warnings.warn(f"{problem}; they are taken from {other}", stacklevel=2)
            checkpoint.save_best(folder, older.weights, older.step)
            return Start(name, True, None)
        if older.step < known["step"]:
            warnings.warn(f"{problem}; resuming from {other} to find them again", stacklevel=2)
            older.state["best"]["awaited"] = known["step"]
            return Start(checkpoint.go_back(folder, older), False, known["step"])
    raise ValueError(
        f"{problem}, and no checkpoint from before step {known['step']} is left to find them again: "
        "put the file back from a copy, or train anew in another folder"
    )


def load_start(folder: Path, start: Start) -> tuple[Checkpoint, dict[str, Tensor] | None]:
    """The version and the best weights that `find_start` settled on."""
    saved = checkpoint.load(folder, start.version)
    saved.state["best"]["awaited"] = start.awaited
    found = checkpoint.load_best(folder) if start.best else None
    return saved, None if found is None else found.weights


def _later(folder: Path, saved: Checkpoint) -> int | None:
    """The step of best weights that run ahead of the version, None if they are its own; a ValueError if neither."""
    found, step = checkpoint.load_best(folder), saved.state["best"]["step"]
    if found is None:
        raise ValueError(f"best weights {folder / BEST} are missing")
    if found.step is None or found.step == step:
        return None
    if found.step > saved.step:
        return found.step
    raise ValueError(f"best weights {folder / BEST} are those of step {found.step}, not of step {step}")
