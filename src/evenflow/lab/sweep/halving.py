"""Successive halving: many points for a few updates, the better ones for more, a few to the end."""

from __future__ import annotations

from dataclasses import dataclass

from evenflow.checks import number, one_of, whole_number


@dataclass(frozen=True)
class Round:
    """A round of a sweep.

    Attributes:
        points: how many points take part.
        until: the updates that each of them has made at the end of the round.
        last: whether it is the last round, which has all seeds and the schedule `Rules.finish`.
    """

    points: int
    until: int
    last: bool = False


@dataclass(frozen=True)
class Rules:
    """How a sweep spends its budget: successive halving.

    In the first round every point makes `first` updates. The best share `keep` enters the next round, which trains it
    to ``1 / keep`` times as many updates, and so on; so all rounds cost about the same. The last round spends the rest
    of the budget on as many points as it can train that much further, but on at least `finalists`. Each of them is
    trained with `seeds` seeds, of which all but the first start from the beginning.

    Args:
        updates: the budget, summed over all points and seeds.
        first: updates of every point in the first round; later rounds but the last end at multiples of it.
        keep: the share of points that enters the next round, between 0 and 1.
        seeds: runs of each point in the last round.
        finalists: points in the last round, if there are as many and the budget is large enough.
        finish: the schedule of the last round, "linear" (the learning rate falls to zero at its end) or "constant".

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
        number("keep", self.keep, above=0, below=1)

    def fewer(self, points: int) -> int:
        """The number of points that enter the next round."""
        return min(points, max(self.finalists, round(points * self.keep)))

    def further(self, reached: int) -> int:
        """The last step of the round after one that ended at step `reached`, unless it is the last round."""
        return max(1 + reached // self.first, round(reached / self.keep / self.first)) * self.first

    def to_the_end(self, points: int, reached: int, left: int) -> int:
        """The step at which this many points, each with all seeds, have spent the rest of the budget, `left`."""
        return (left + points * reached) // (points * self.seeds)


def first_round(points: int, rules: Rules) -> Round:
    """The round of all points; a ValueError if the budget is too small for it."""
    cost = points * rules.first
    if cost > rules.updates:
        raise ValueError(
            f"updates must be at least {cost} for a first round of {points} candidates at {rules.first} updates each, "
            f"got {rules.updates}: give more, or fewer candidates, or a smaller first"
        )
    return Round(points, rules.first)


def next_round(before: Round, alive: int, left: int, rules: Rules) -> Round | None:
    """The round after `before`, in which `alive` points did not diverge; None if the budget is spent.

    It is the last round if the rest of the budget would not pay for another one after it.
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
    """The rounds of a sweep in which no point diverges."""
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
