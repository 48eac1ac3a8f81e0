"""Verdicts: compares measured with published values, and judges the ordering of rows that a document claims."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evenflow.lab.report.numbers import number
from evenflow.lab.training.settings import VALIDATE_EVERY

from .configs import config_of
from .measures import measure_of
from .schema import Column, Recipe, RecipeRow, Value

REPRODUCED, BETTER, WORSE, DIFFERENT = "reproduced", "better", "worse", "different"
DIVERGED, NOTHING, EMPTY = "diverged", "nothing was measured", "–"
NO_TEST = "no test part in the data"
NOT_COMPARABLE, NOTHING_PRINTED, TOO_SMALL = "not comparable", "no number printed", "too small to compare"
NEVER = "never"  # an infinite number of updates
HOLDS, FAILS, UNDECIDED = "ordering holds", "ordering does not hold", "too small to tell"


@dataclass
class TableCell:
    """One column of one row: measured and published value, and the verdict.

    Attributes:
        row, column: the place in the table.
        values: a number or a text for each seed that has one.
        gaps: for each other seed, why it has none.
        verdict, reason: filled in by `judge`.
    """

    row: RecipeRow
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
        """Standard deviation over the seeds; None for a single seed."""
        finite = [v for v in self.numbers if math.isfinite(v)]
        return statistics.stdev(finite) if len(finite) > 1 else None

    @property
    def published(self) -> Value | None:
        return self.row.published.get(self.column.name)

    @property
    def published_spread(self) -> float | None:
        return self.row.spread.get(self.column.name)

    @property
    def target(self) -> float | None:
        """The published value as a number; None if there is none or if it is a text."""
        return None if self.published is None else as_number(self.column, self.published)

    def measured_text(self) -> str:
        if not self.values:
            return "; ".join(gap for gap in dict.fromkeys(self.gaps) if gap != NOTHING) or EMPTY
        texts = [v for v in self.values if isinstance(v, str)]
        if texts:
            return texts[0]
        count, finite = len(self.numbers), [v for v in self.numbers if math.isfinite(v)]
        if finite and len(finite) < count:
            mean = format_value(self.column, statistics.fmean(finite))
            return f"{mean} in {len(finite)} of {count} seeds, else never"
        distinct = sorted(set(self.numbers), reverse=True)
        if measure_of(self.column).words and len(distinct) > 1:
            parts = (f"{format_value(self.column, value)} in {self.numbers.count(value)}" for value in distinct)
            return f"{', '.join(parts)} of {count} seeds"
        shown = format_value(self.column, self.mean)
        return f"{shown} ± {number(self.spread, 2)}" if self.spread else shown

    def missing_text(self) -> str:
        """How many seeds the mean leaves out; empty if none."""
        return f"; {len(self.gaps)} without a number" if self.values and self.gaps else ""

    def published_text(self) -> str:
        if self.published is None:
            return EMPTY
        shown = self.published if isinstance(self.published, str) else format_value(self.column, self.published)
        return shown if self.published_spread is None else f"{shown} ± {number(self.published_spread, 2)}"

    def verdict_text(self) -> str:
        return f"{self.verdict}: {self.reason}" if self.reason else self.verdict


def format_value(column: Column, value: float | None) -> str:
    """A value of a column as a word, a whole number or four digits."""
    if value is None:
        return EMPTY
    if isinstance(value, float) and math.isinf(value):
        return NEVER
    for at, word in measure_of(column).words:
        if float(value) == at:
            return word
    return f"{value:,.0f}" if "parameters" in column.measure else number(float(value), 4)


def as_number(column: Column, value: Value) -> float | None:
    """A published value as a number: words by the measure's own scale, None for any other text."""
    if isinstance(value, str):
        return math.inf if value == NEVER else {word: at for at, word in measure_of(column).words}.get(value)
    return float(value)


def judge(cell: TableCell, scale: str, ordering: Mapping[str, str]) -> None:
    """Fill in the verdict of a cell.

    At full scale a value is reproduced if it differs from the published one by at most the tolerance, or by at most
    the sum of the two standard deviations if that is more. At quick scale nothing is compared but what the scale does
    not change; all that can be said is the outcome of the row's `ordering`.
    """
    cell.verdict, cell.reason = _compare(cell)
    outcome = f"; {ordering[cell.row.label]}" if cell.row.label in ordering else ""
    trains, any_scale = measure_of(cell.column).trains, cell.column.any_scale
    if cell.verdict == NOTHING_PRINTED and (scale == "full" or not trains or any_scale):
        cell.verdict += outcome
    elif scale == "quick" and not any_scale and cell.verdict not in (NOT_COMPARABLE, DIVERGED, EMPTY):
        # A value that needs no training, such as a number of parameters, may agree at quick scale too.
        agrees = not trains and cell.verdict == REPRODUCED
        cell.verdict, cell.reason = REPRODUCED if agrees else TOO_SMALL + outcome, ""


def missing_reason(measure: str, diverged: bool) -> str:
    """Why a finished run has no value of a measure."""
    if diverged:
        return DIVERGED
    return NO_TEST if measure.startswith("test_") else NOTHING


def _compare(cell: TableCell) -> tuple[str, str]:
    """Verdict and reason at full scale."""
    column, published, target, mean = cell.column, cell.published, cell.target, cell.mean
    if not cell.values:
        reasons = list(dict.fromkeys(cell.gaps)) or [NOTHING]
        if published is None and reasons == [NOTHING]:
            return EMPTY, ""
        if reasons == [DIVERGED] and column.better != "same":
            return (DIVERGED, "") if published is None else (WORSE, DIVERGED)
        return NOT_COMPARABLE, "; ".join(reasons)
    if published is None:
        return NOTHING_PRINTED, ""
    if column.incomparable and not (column.better == "same" and mean is not None and mean == target):
        return NOT_COMPARABLE, column.incomparable
    if target is None or mean is None:
        return NOT_COMPARABLE, "the document gives words"
    if math.isnan(mean):
        return NOT_COMPARABLE, NOTHING
    allowed = max(column.tolerance, (cell.published_spread or 0.0) + (cell.spread or 0.0))
    # A rounding error in the last digit of a published value is no difference.
    if mean == target or (math.isfinite(target) and abs(mean - target) <= allowed + 1e-9 * abs(target)):
        return REPRODUCED, ""
    if column.better == "same":
        return DIFFERENT, ""
    return (BETTER if (mean > target) == (column.better == "higher") else WORSE), ""


@dataclass(frozen=True)
class Pair:
    """A claim of the document, that one row is better than another, and its outcome."""

    better: str
    worse: str
    outcome: str


def judge_ordering(recipe: Recipe, cells: Mapping[tuple[str, str], TableCell], scale: str = "full") -> list[Pair]:
    """The outcome of the document's claims about the first column, for rows that were measured."""
    column, decidable = recipe.columns[0], recipe.scale(scale).ordering is not False
    pairs = []
    for chain in recipe.claims(scale):
        ranks = {label: rank(cells.get((label, column.name)), column) for label in chain}
        measured = [(label, value) for label, value in ranks.items() if value is not None]
        for (first, a), (second, b) in itertools.pairwise(measured):
            gap = a - b if column.better == "higher" else b - a
            noise = _noise(cells[first, column.name], cells[second, column.name])
            least = max(recipe.resolution, noise, _validation_interval(recipe, column, (first, second), scale))
            if not decidable or math.isnan(gap) or abs(gap) <= least:
                outcome = UNDECIDED
            else:
                outcome = HOLDS if gap > 0 else FAILS
            pairs.append(Pair(first, second, outcome))
    return pairs


def _noise(a: TableCell, b: TableCell) -> float:
    """Twice the standard error of the difference of two means; 0 if one of them has a single seed."""
    if a.spread is None or b.spread is None:
        return 0.0
    return 2 * math.sqrt(a.spread**2 / len(a.numbers) + b.spread**2 / len(b.numbers))


def _validation_interval(recipe: Recipe, column: Column, labels: Sequence[str], scale: str) -> float:
    """Updates between two validations of these rows if the column counts updates up to a validation, else 0."""
    if not measure_of(column).validated:
        return 0.0
    trainings = [config_of(recipe, recipe.row(label), scale)["training"] for label in labels]
    return float(max(each.get("validate_every", VALIDATE_EVERY) for each in trainings))


def rank(cell: TableCell | None, column: Column) -> float | None:
    """The value that a row is ordered by; a diverged row is worst of all. None if nothing was measured."""
    if cell is None or cell.mean is not None:
        return None if cell is None else cell.mean
    if cell.gaps and set(cell.gaps) == {DIVERGED}:
        return -math.inf if column.better == "higher" else math.inf
    return None


def worst_by_row(pairs: Sequence[Pair]) -> dict[str, str]:
    """For each row the worst outcome of its pairs."""
    worst: dict[str, str] = {}
    for outcome in (HOLDS, UNDECIDED, FAILS):
        for pair in pairs:
            if pair.outcome == outcome:
                worst[pair.better] = worst[pair.worse] = outcome
    return worst


def summary(pairs: Sequence[Pair]) -> str:
    """One sentence about the ordering; empty if there is none."""
    if not pairs:
        return ""
    counts = {word: sum(pair.outcome == word for pair in pairs) for word in (HOLDS, FAILS, UNDECIDED)}
    parts = [f"The document's ordering holds in {counts[HOLDS]} of {len(pairs)} pairs"]
    if counts[FAILS]:
        failed = "; ".join(f"{p.better} is not better than {p.worse}" for p in pairs if p.outcome == FAILS)
        parts.append(f"does not hold in {counts[FAILS]} ({failed})")
    if counts[UNDECIDED]:
        parts.append(f"{counts[UNDECIDED]} too small to tell")
    return ", ".join(parts) + "."
