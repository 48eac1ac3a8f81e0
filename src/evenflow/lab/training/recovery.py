"""Choose the checkpoint from which a run resumes, and repair or recompute damaged best weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from . import checkpoint
from .checkpoint import BEST, Checkpoint
from .stopping import NonFiniteLoss


class Start(NamedTuple):
    """Where a run resumes.

    Attributes:
        version: name of the checkpoint's version.
        best: whether to read the file of the best weights.
        awaited: a later step at which the interrupted run had its best validation, which the resumed run will repeat;
            None if there is none.
        lost: whether the best weights are lost for good.
    """

    version: str
    best: bool
    awaited: int | None
    lost: bool = False


def find_start(folder: Path) -> Start | None:
    """Where the run of a checkpoint folder resumes, None if it has to start anew; a warning names damaged files.

    Best weights that are damaged or missing are copied from the version of their step. Without that version the run
    goes back to an older one, which becomes the latest, and computes them again; so only the process that resumes the
    run may call this. If there is no such version either, the best weights are lost, and the run goes on without them.
    """
    name = checkpoint.find(folder)
    if name is None:
        return None
    saved = checkpoint.load(folder, name)
    best = saved.state.get("best")
    if not isinstance(best, dict) or not isinstance(best.get("step"), int | None):
        raise ValueError(f"checkpoint {folder / name} cannot be resumed: it does not say which step was the best")
    if best.get("step") is None:
        return Start(name, False, None)
    try:
        return Start(name, True, _later(folder, saved) or best.get("awaited"))
    except ValueError as error:
        problem = str(error)
    if best.get("awaited") is not None:  # the run has gone back before and has not yet reached that step
        return Start(name, False, best["awaited"])
    good = [version for version in checkpoint.versions(folder) if checkpoint.intact(folder / version)]
    for other in good:
        older = checkpoint.load(folder, other)
        if older.step == best["step"]:
            warnings.warn(f"{problem}; they are taken from {other}", stacklevel=2)
            first = best.get("first")
            checkpoint.save_best(folder, older.weights, older.step, None if first == best.get("digest") else first)
            return Start(name, True, None)
        if older.step < best["step"]:
            warnings.warn(f"{problem}; resuming from {other} to find them again", stacklevel=2)
            older.state["best"]["awaited"] = best["step"]
            return Start(checkpoint.go_back(folder, older), False, best["step"])
    warnings.warn(
        f"{problem}; they are lost, since no checkpoint from before step {best['step']} is left to find them again: "
        f"the weights of step {saved.step}, validated anew, count as the best until later ones are better",
        stacklevel=2,
    )
    return Start(name, False, None, lost=True)


def load_start(folder: Path, start: Start) -> tuple[Checkpoint, dict[str, Tensor] | None]:
    """The checkpoint and the best weights of a start."""
    saved = checkpoint.load(folder, start.version)
    saved.state["best"]["awaited"] = start.awaited
    if start.lost:
        saved.state["best"] |= {"step": None, "lost": True}
    best = checkpoint.load_best(folder) if start.best else None
    if best is not None and start.awaited is None:  # a checkpoint of an older version does not hold it
        saved.state["best"]["digest"] = best.digest
    return saved, None if best is None else best.weights


@contextmanager
def state_fits(what: str) -> Iterator[None]:
    """Turn the errors of a state that is not what the run saved into a ValueError; `what` names the checkpoint."""
    try:
        yield
    except (NonFiniteLoss, torch.OutOfMemoryError):
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        said = (str(error).strip().splitlines() or [""])[0]
        raise ValueError(
            f"{what} cannot be resumed, its state does not fit the run: {type(error).__name__}: {said}"
        ) from error


def _later(folder: Path, saved: Checkpoint) -> int | None:
    """The step of best weights that are newer than the checkpoint; None if they are its own.

    Weights that are neither raise a ValueError.
    """
    best, step = checkpoint.load_best(folder), saved.state["best"]["step"]
    if best is None:
        raise ValueError(f"best weights {folder / BEST} are missing")
    recorded = saved.state["best"].get("digest")  # None in checkpoints of older versions
    if best.step is None or best.step == step:
        if recorded is None or recorded == best.digest:
            return None
        raise ValueError(f"best weights {folder / BEST} are not those of this run")
    if best.step > saved.step:
        if saved.state["best"].get("first") in (None, best.first) or best.first is None:
            return best.step
        raise ValueError(f"best weights {folder / BEST} are not those of this run")
    raise ValueError(f"best weights {folder / BEST} are those of step {best.step}, not of step {step}")
