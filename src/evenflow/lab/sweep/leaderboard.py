"""The leaderboard of a sweep: the state, the scores and the rank of every point."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evenflow.lab.training.extend_run import Score

from .candidates import Point
from .halving import Round


@dataclass(frozen=True)
class Standing:
    """A point's place on the leaderboard: means over its seeds at the end of the last round it has completed.

    Attributes:
        state: running, finished (in the last round of a sweep that is over), out, or diverged.
        reason: why it is out.
        round: the number of its last round, from 1.
        updates: the updates of each of its runs.
        valid_metric, valid_loss: of the best validation.
        test_metric: of the weights with the best validation; nan without a test set.
        spread: standard deviation of valid_metric over seeds; nan with fewer than two.
        folders: its run folders.
    """

    point: Point
    state: str
    reason: str
    round: int
    updates: int
    valid_metric: float
    valid_loss: float
    test_metric: float
    spread: float
    folders: tuple[Path, ...]


@dataclass
class RoundState:
    """A round that has started: the names of its points, and the scores so far, one for each seed of a point."""

    round: Round
    entrants: list[str]
    scores: dict[str, tuple[Score, ...]] = field(default_factory=dict)


def run_folder(folder: Path, point: Point, seed: int) -> Path:
    """The run folder of a point and a seed."""
    return folder / f"{point.name}-seed-{seed}"


def spent(rounds: Sequence[RoundState]) -> int:
    """The updates of all runs that have a score."""
    latest = {(name, s.seed): s.updates for each in rounds for name, scores in each.scores.items() for s in scores}
    return sum(latest.values())


def ranked(
    points: Sequence[Point], rounds: Sequence[RoundState], higher_is_better: bool, folder: Path, over: bool
) -> list[Standing]:
    """All points: those with more updates first, then those with the better validation; diverged points last.

    Args:
        rounds: the rounds so far; the last one may lack scores.
        over: whether the last of them is the last round of the sweep.
    """
    sign = -1 if higher_is_better else 1

    def key(standing: Standing) -> tuple[bool, int, float, float]:
        scored = not math.isnan(standing.valid_metric)
        values = (sign * standing.valid_metric, standing.valid_loss) if scored else (math.inf, math.inf)
        return (standing.state == "diverged", -standing.updates, *values)

    return sorted((_standing(point, rounds, folder, over) for point in points), key=key)


def _standing(point: Point, rounds: Sequence[RoundState], folder: Path, over: bool) -> Standing:
    entered = max((number for number, each in enumerate(rounds) if point.name in each.entrants), default=0)
    scores: tuple[Score, ...] = ()
    for each in rounds:
        scores = each.scores.get(point.name, scores)
    diverged = [score for score in scores if score.reason]
    state, reason = "running", ""
    if diverged:
        state, reason = "diverged", diverged[0].reason
    elif entered + 1 < len(rounds):
        state, reason = "out", f"not among the best {rounds[entered + 1].round.points} of round {entered + 1}"
    elif over:
        state = "finished"
    metrics = [score.valid_metric for score in scores]
    return Standing(
        point=point,
        state=state,
        reason=reason,
        round=entered + 1,
        updates=min((score.updates for score in scores), default=0),
        valid_metric=_mean(metrics),
        valid_loss=_mean([score.valid_loss for score in scores]),
        test_metric=_mean([score.test_metric for score in scores]),
        spread=statistics.stdev(metrics) if len(metrics) > 1 and not diverged else math.nan,
        folders=tuple(run_folder(folder, point, score.seed) for score in scores),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
