"""Measured against published: reproduced, better, worse, or not comparable and why."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evenflow.lab.report.numbers import number
from evenflow.lab.training import Settings

from .configs import config_of
from .measures import MEASURES
from .schema import Column, Recipe, Row, Value

REPRODUCED, BETTER, WORSE, DIFFERENT = "reproduced", "better", "worse", "different"
DIVERGED, NOTHING, NOT_ASKED = "diverged", "nothing was measured", "–"
NO_TEST = "no test part in the data"
NOT_COMPARABLE, NOTHING_PRINTED, TOO_SMALL = "not comparable", "no number printed", "too small to compare"
NEVER = "never"  # of a number of updates
HOLDS, FAILS, UNDECIDED = "ordering holds", "ordering does not hold", "too small to tell"


@dataclass
class Cell:
    """One column of one row: what was measured with each seed, what was published, and the verdict.

    values holds a number or a text per seed that ended; gaps says of the other seeds why there is none.
    """

    row: Row
    column: Column
    values: list[float | str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    verdict: str = ""
    reason: str = ""

    @property
    def numbers(self) -> list[float]:
        return [float(v) for v in self.values if not isinstance(v, str)]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.numbers) if self.numbers else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None of a single one."""
        found = [v for v in self.numbers if math.isfinite(v)]
        return statistics.stdev(found) if len(found) > 1 else None

    @property
    def published(self) -> Value | None:
        return self.row.published.get(self.column.name)

    def measured_text(self) -> str:
        if not self.values:
            return "; ".join(gap for gap in dict.fromkeys(self.gaps) if gap != NOTHING) or "–"
        texts = [v for v in self.values if isinstance(v, str)]
        if texts:
            return texts[0]
        ended = [v for v in self.numbers if math.isfinite(v)]
        if ended and len(ended) < len(self.numbers):
            return (
                f"{say(self.column, statistics.fmean(ended))} in {len(ended)} of {len(self.numbers)} seeds, else never"
            )
        if in_words(self.column) and len(set(self.numbers)) > 1:
            words = {say(self.column, value): self.numbers.count(value) for value in sorted(set(self.numbers))[::-1]}
            return f"{', '.join(f'{word} in {count}' for word, count in words.items())} of {len(self.numbers)} seeds"
        shown = say(self.column, self.mean)
        return f"{shown} ± {number(self.spread, 2)}" if self.spread else shown

    def lost_text(self) -> str:
        """How many seeds the mean leaves out, to stand behind it; empty where it is over all of them."""
        return f"; {len(self.gaps)} without a number" if self.values and self.gaps else ""

    def published_text(self) -> str:
        if self.published is None:
            return "–"
        spread = self.row.spread.get(self.column.name)
        shown = self.published if isinstance(self.published, str) else say(self.column, self.published)
        return shown if spread is None else f"{shown} ± {number(spread, 2)}"

    def verdict_text(self) -> str:
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


def in_words(column: Column) -> bool:
    return bool(MEASURES[column.measure].words)


def say(column: Column, value: float | None) -> str:
    """A number of a column as it is shown: a word, a whole number or four digits."""
    if value is None:
        return "–"
    if isinstance(value, float) and math.isinf(value):
        return NEVER
    for at, word in MEASURES[column.measure].words:
        if float(value) == at:
            return word
    return f"{value:,.0f}" if "parameters" in column.measure else number(float(value), 4)


def as_number(column: Column, value: Value) -> float | None:
    """A published value as a number: words by the measure's own scale, None for a text."""
    if isinstance(value, str):
        if value == NEVER:
            return math.inf
        return {word: at for at, word in MEASURES[column.measure].words}.get(value)
    return float(value)


def judge(cell: Cell, scale: str, ordering: Mapping[str, str]) -> None:
    """Fill in the verdict of a cell.

    At full scale a number is reproduced when it lies within the tolerance of the published one, or within the two
    spreads together where that is more. At quick scale nothing is compared, and the ordering is all there is to say.
    """
    cell.verdict, cell.reason = _verdict(cell)
    told = f"; {ordering[cell.row.label]}" if cell.row.label in ordering else ""
    trains = MEASURES[cell.column.measure].trains
    if cell.verdict == NOTHING_PRINTED and (scale == "full" or not trains or cell.column.any_scale):
        cell.verdict += told
    elif scale == "quick" and not cell.column.any_scale and cell.verdict not in (NOT_COMPARABLE, DIVERGED, NOT_ASKED):
        # What no training changes, such as a count of parameters, agrees at any scale that leaves the shape as it is.
        agrees = not trains and cell.verdict == REPRODUCED
        cell.verdict = REPRODUCED if agrees else TOO_SMALL + told
        cell.reason = ""


def missing(measure: str, diverged: bool) -> str:
    """Why a run that has ended has no number of this measure."""
    if diverged:
        return DIVERGED
    return NO_TEST if measure.startswith("test_") else NOTHING


def _verdict(cell: Cell) -> tuple[str, str]:
    column, published = cell.column, cell.published
    if not cell.values:
        reasons = list(dict.fromkeys(cell.gaps)) or [NOTHING]
        if published is None and reasons == [NOTHING]:
            return NOT_ASKED, ""
        if reasons == [DIVERGED] and column.better != "same":
            return (DIVERGED, "") if published is None else (WORSE, DIVERGED)
        return NOT_COMPARABLE, "; ".join(reasons)
    if published is None:
        return NOTHING_PRINTED, ""
    target, mean = as_number(column, published), cell.mean
    if column.incomparable and not (column.better == "same" and mean is not None and mean == target):
        return NOT_COMPARABLE, column.incomparable
    if target is None or mean is None:
        return NOT_COMPARABLE, "the document gives words"
    allowed = max(column.tolerance, cell.row.spread.get(column.name, 0.0) + (cell.spread or 0.0))
    if math.isnan(mean):
        return NOT_COMPARABLE, NOTHING
    # Rounding in the last place of a published number is no difference.
    if mean == target or (math.isfinite(target) and abs(mean - target) <= allowed + 1e-9 * abs(target)):
        return REPRODUCED, ""
    if column.better == "same":
        return DIFFERENT, ""
    return (BETTER if (mean > target) == (column.better == "higher") else WORSE), ""


@dataclass(frozen=True)
class Pair:
    """One claim of the document, that a row is better than another, and what became of it."""

    better: str
    worse: str
    outcome: str


def order(recipe: Recipe, cells: Mapping[tuple[str, str], Cell], scale: str = "full") -> list[Pair]:
    """The document's claims about the first column, as far as both rows were measured."""
    column, meaningful = recipe.columns[0], recipe.scale(scale).ordering is not False
    pairs = []
    for chain in recipe.claims(scale):
        ranks = {label: rank(cells.get((label, column.name)), column) for label in chain}
        measured = [(label, at) for label, at in ranks.items() if at is not None]
        for (first, a), (second, b) in itertools.pairwise(measured):
            gap = a - b if column.better == "higher" else b - a
            noise = _noise(cells[first, column.name], cells[second, column.name])
            least = max(recipe.resolution, noise, _look(recipe, column, (first, second), scale))
            if not meaningful or math.isnan(gap) or abs(gap) <= least:
                outcome = UNDECIDED
            else:
                outcome = HOLDS if gap > 0 else FAILS
            pairs.append(Pair(first, second, outcome))
    return pairs


def _noise(a: Cell, b: Cell) -> float:
    """Twice the standard error of the difference of two means; 0 where one has a single seed, which tells no spread."""
    if a.spread is None or b.spread is None:
        return 0.0
    return 2 * math.sqrt(a.spread**2 / len(a.numbers) + b.spread**2 / len(b.numbers))


def _look(recipe: Recipe, column: Column, labels: Sequence[str], scale: str) -> float:
    """Updates between two validations of these rows, where the column counts up to one; else 0."""
    if not MEASURES[column.measure].looked:
        return 0.0
    trainings = [config_of(recipe, recipe.row(label), scale)["training"] for label in labels]
    return float(max(each.get("validate_every", Settings.validate_every) for each in trainings))


def rank(cell: Cell | None, column: Column) -> float | None:
    """The number a row is ordered by: diverged is worst of all; None where nothing was measured."""
    if cell is None:
        return None
    mean = cell.mean
    if mean is not None:
        return mean
    if cell.gaps and set(cell.gaps) == {DIVERGED}:
        return -math.inf if column.better == "higher" else math.inf
    return None


def by_row(pairs: Sequence[Pair]) -> dict[str, str]:
    """For each row the worst that its claims came to."""
    told: dict[str, str] = {}
    for outcome in (HOLDS, UNDECIDED, FAILS):
        for pair in pairs:
            if pair.outcome == outcome:
                told[pair.better] = told[pair.worse] = outcome
    return told


def summary(pairs: Sequence[Pair]) -> str:
    """One sentence about the ordering."""
    if not pairs:
        return ""
    counts = {word: sum(pair.outcome == word for pair in pairs) for word in (HOLDS, FAILS, UNDECIDED)}
    parts = [f"the document's ordering holds in {counts[HOLDS]} of {len(pairs)} pairs"]
    if counts[FAILS]:
        told = "; ".join(f"{p.better} is not better than {p.worse}" for p in pairs if p.outcome == FAILS)
        parts.append(f"does not hold in {counts[FAILS]} ({told})")
    if counts[UNDECIDED]:
        parts.append(f"{counts[UNDECIDED]} too small to tell")
    text = ", ".join(parts)
    return text[0].upper() + text[1:] + "."
