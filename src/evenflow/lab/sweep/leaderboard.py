"""Where the points of a sweep stand: who is still in, who is out and why, and in which order."""

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
    """One point: means over its seeds at the end of the last round that it has come through.

    Attributes:
        state: running, finished (in the last round of a sweep that is over), out, or diverged.
        reason: why it is out.
        round, updates: the round it is in or left in, from 1, and the updates of each of its runs.
        valid_metric, valid_loss: of the best validation. test_metric: of the weights there, nan without a test part.
        spread: standard deviation of valid_metric over seeds, nan with fewer than two.
        folders: its runs.
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
class Held:
    """A round that has begun: who takes part, and the scores that are known, one for each seed, by a point's name."""

    round: Round
    entrants: list[str]
    scores: dict[str, tuple[Score, ...]] = field(default_factory=dict)


def run_folder(folder: Path, point: Point, seed: int) -> Path:
    """Where a point's run with that seed lies."""
    return folder / f"{point.name}-seed-{seed}"


def spent(held: Sequence[Held]) -> int:
    """Updates made by all runs of these rounds."""
    latest = {(name, s.seed): s.updates for each in held for name, scores in each.scores.items() for s in scores}
    return sum(latest.values())


def ranked(
    points: Sequence[Point], held: Sequence[Held], higher_is_better: bool, folder: Path, over: bool
) -> list[Standing]:
    """Every point, best first: who got further, and there whose best validation is better; the diverged last.

    Args:
        held: the rounds so far, of which the last may lack scores.
        over: whether no round is to follow.
    """
    sign = -1 if higher_is_better else 1

    def key(standing: Standing) -> tuple[bool, int, float, float]:
        known = not math.isnan(standing.valid_metric)
        values = (sign * standing.valid_metric, standing.valid_loss) if known else (math.inf, math.inf)
        return (standing.state == "diverged", -standing.updates, *values)

    return sorted((_standing(point, held, folder, over) for point in points), key=key)


def _standing(point: Point, held: Sequence[Held], folder: Path, over: bool) -> Standing:
    entered = max((number for number, each in enumerate(held) if point.name in each.entrants), default=0)
    scores: tuple[Score, ...] = ()
    for each in held:
        scores = each.scores.get(point.name, scores)
    failed = [score for score in scores if score.reason]
    state, reason = "running", ""
    if failed:
        state, reason = "diverged", failed[0].reason
    elif entered + 1 < len(held):
        state, reason = "out", f"not among the best {held[entered + 1].round.points} of round {entered + 1}"
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
        spread=statistics.stdev(metrics) if len(metrics) > 1 and not failed else math.nan,
        folders=tuple(run_folder(folder, point, score.seed) for score in scores),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
