"""Successive halving: many points for a few updates, the better ones for more, a few to the end."""

from __future__ import annotations

from dataclasses import dataclass

from evenflow.checks import one_of, whole_number


@dataclass(frozen=True)
class Round:
    """A round: how many points take part, and how many updates each has made at its end.

    `last` rounds have all seeds, and where the rules say so a rate that falls.
    """

    points: int
    until: int
    last: bool = False


@dataclass(frozen=True)
class Rules:
    """How a budget is spent.

    In the first round every point makes `first` updates. The best share `keep` goes on to ``1 / keep`` times as many,
    again and again, so that all rounds cost about the same. The last round takes what is left: as many points as can
    still go that much further, but no fewer than `finalists`, each with `seeds` seeds, of which all but the first begin
    anew.

    Args:
        updates: the budget, summed over all points and seeds.
        first: updates of every point in the first round; later rounds but the last end at multiples of it.
        keep: the share that goes on, between 0 and 1.
        seeds: runs of each point in the last round.
        finalists: points in the last round, as long as there are that many and it is enough for them.
        finish: the schedule of the last round, "linear" (the rate falls to zero at its end) or "constant".

        >>> plan(48, Rules(updates=100000))
        [Round(points=48, until=500), Round(points=16, until=1500), Round(points=5, until=4500), Round(points=3, ...)]

    Reference: Jamieson and Talwalkar 2016.
    """

    updates: int
    first: int = 500
    keep: float = 0.33
    seeds: int = 1
    finalists: int = 3
    finish: str = "linear"

    def __post_init__(self) -> None:
        for name in ("updates", "first", "seeds", "finalists"):
            whole_number(name, getattr(self, name), 1)
        one_of("finish", self.finish, ("linear", "constant"))
        number = isinstance(self.keep, int | float) and not isinstance(self.keep, bool)
        if not number or not 0 < self.keep < 1:
            raise ValueError(f"keep must be a share between 0 and 1, got {self.keep!r}")

    def fewer(self, points: int) -> int:
        """How many of so many points go on."""
        return min(points, max(self.finalists, round(points * self.keep)))

    def further(self, reached: int) -> int:
        """Where the round after one that ended at `reached` ends, unless it is the last."""
        return max(1 + reached // self.first, round(reached / self.keep / self.first)) * self.first

    def to_the_end(self, points: int, reached: int, left: int) -> int:
        """Where so many points, each with all seeds, have used up what is left of the budget."""
        return (left + points * reached) // (points * self.seeds)


def first_round(points: int, rules: Rules) -> Round:
    """The round of all points; a ValueError if the budget is not enough for it."""
    cost = points * rules.first
    if cost > rules.updates:
        raise ValueError(
            f"updates must be at least {cost} for a first round of {points} candidates at {rules.first} updates each, "
            f"got {rules.updates}: give more, or fewer candidates, or a smaller first"
        )
    return Round(points, rules.first)


def next_round(before: Round, alive: int, left: int, rules: Rules) -> Round | None:
    """The round after `before`, in which `alive` points did not diverge; None where the budget is spent.

    A round is the last when one more after it could not grow as rounds grow.
    """
    if before.last:
        return None
    size = min(alive, rules.fewer(before.points))
    until = rules.further(before.until)
    rest = left - size * (until - before.until)
    if size > rules.finalists and rest >= 0:
        after = rules.fewer(size)
        if rules.to_the_end(after, until, rest) >= until / rules.keep:
            return Round(size, until)
    fewest = min(size, rules.finalists)
    for points in range(size, 0, -1):
        end = rules.to_the_end(points, before.until, left)
        if end >= until or (points <= fewest and end > before.until):
            return Round(points, end, last=True)
    return None


def plan(points: int, rules: Rules) -> list[Round]:
    """The rounds as they will be if no point diverges."""
    rounds = [first_round(points, rules)]
    left = rules.updates - points * rules.first
    while (following := next_round(rounds[-1], rounds[-1].points, left, rules)) is not None:
        left -= following.points * (following.until - rounds[-1].until)
        rounds.append(following)
    if rules.seeds > 1 and not rounds[-1].last:
        least = rules.updates - left + rules.seeds * (rounds[-1].until + 1) - rounds[-1].until
        raise ValueError(
            f"updates must be at least {least} for a last round of one point with {rules.seeds} seeds, "
            f"got {rules.updates}"
        )
    return rounds
