"""The step from which the runs of a population resume together, so that they end with the bits of an undisturbed one.

The last bits of a run depend on the runs beside it. So after a kill between the checkpoints of two runs, all go back to
the newest step that each of them has saved. Every run keeps the version before its latest, and no run makes an update
before all have saved: such a step exists after a kill at any moment, and becomes a later one with the last of their
checkpoints. A run that has ended goes back with the others if they were beside it when they saved that step.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import checkpoint
from .run_folder import CHECKPOINT, CONFIG, Run
from .settings import Settings
from .stopping import NonFiniteLoss

POPULATION = "population"  # key of a checkpoint's state: the folders of all runs, seen from the run's own


def members(folder: Path, folders: Sequence[Path]) -> list[str]:
    """What the checkpoints of a run say of its population: it holds if all folders are moved together."""
    return [Path(os.path.relpath(other.absolute(), folder.absolute())).as_posix() for other in folders]


@dataclass(frozen=True)
class MemberStart:
    """How a run of a population resumes.

    Attributes:
        population: the folders of the runs that it is trained with; runs of different populations are not mixed.
        until: the newest step from which it may resume; None for its newest checkpoint.
        error: that of a run which has diverged and is not trained again, or None.
    """

    population: tuple[Path, ...] = ()
    until: int | None = None
    error: NonFiniteLoss | None = None


@dataclass(frozen=True)
class _Saved:
    """What the folder of a run holds: the steps of its intact checkpoints, its population, and how it ended."""

    steps: frozenset[int]
    population: tuple[Path, ...]
    ended: float  # the step at which it ended, infinity for a run that goes on
    error: NonFiniteLoss | None


def common_start(folders: Sequence[Path]) -> list[MemberStart]:
    """How each run resumes. Runs that were not trained together resume from their own newest checkpoints."""
    saved = [_read(folder) for folder in folders]
    kinds: dict[tuple[Path, ...], list[int]] = {}
    for i, one in enumerate(saved):
        # A run that was killed before its first checkpoint: another's says which population it is of.
        named = (each.population for each in saved if _full(folders[i]) in each.population)
        kinds.setdefault(one.population or (() if one.steps else next(named, ())), []).append(i)
    starts = [MemberStart()] * len(folders)
    for population, places in kinds.items():
        together = [saved[i] for i in places]
        until = _common_step(together) if population else None
        beside = population or tuple(_full(folders[i]) for i in places)  # from now on
        if population and until is None and any(one.ended == float("inf") for one in together):
            warnings.warn(
                f"the runs in {', '.join(repr(str(folders[i])) for i in places)} have no checkpoint of the same step: "
                "those behind catch up alone, so the last bits may differ from those of an undisturbed training",
                stacklevel=2,
            )
        for i in places:
            ended = until is None or saved[i].ended <= until
            starts[i] = MemberStart(beside, None if ended else until, saved[i].error if ended else None)
    return starts


def _common_step(together: Sequence[_Saved]) -> int | None:
    """The newest step from which all can resume that had not ended by then; None if there is none."""
    going = [one.steps or {0} for one in together if one.ended == float("inf")]
    common = frozenset[int].intersection(*map(frozenset, going)) if going else frozenset()
    fits = [step for step in common if all(one.ended <= step or step in (one.steps or {0}) for one in together)]
    return max(fits, default=None)


def _read(folder: Path) -> _Saved:
    if not (folder / CONFIG).is_file():
        return _Saved(frozenset(), (), float("inf"), None)
    run, place = Run(folder), folder / CHECKPOINT
    versions = [version for version in checkpoint.versions(place) if checkpoint.intact(place / version)]
    names = checkpoint.load(place, versions[0]).state.get(POPULATION, ()) if versions else ()
    population = tuple(_full(folder / name) for name in names)
    steps = frozenset(checkpoint.step_of(version) for version in versions)
    step, ended, error = int(run.status.get("step", 0)), float("inf"), None
    if run.diverged:
        ended, error = step, NonFiniteLoss(str(run.status["message"]))
    elif run.status["state"] == "finished" and step in steps and (_stopped(run) or step >= _last(run)):
        ended = step
    return _Saved(steps, population, ended, error)


def _stopped(run: Run) -> bool:
    return bool(run.status.get("stopped_early"))


def _last(run: Run) -> float:
    """The last step of the run's config; the status of a finished run of epochs holds it."""
    training = run.config.get("training", {})
    return 0 if "epochs" in training else Settings.from_dict(training).steps


def _full(folder: Path) -> Path:
    return Path(os.path.normpath(folder.absolute()))
