"""A cell of a recipe's table: measured and published values, and how they are written."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from evenflow.lab.report.numbers import number

from .measures import measure_of
from .schema import Column, RecipeRow, Value

DIVERGED, NOTHING, EMPTY = "diverged", "nothing was measured", "–"
NO_TEST = "no test part in the data"
NEVER = "never"  # an infinite number of updates


@dataclass
class TableCell:
    """One column of one row: measured and published value, and the verdict.

    Attributes:
        row, column: the place in the table.
        values: a number or a text for each seed that has one.
        gaps: for each other seed, why it has none.
        earlier: whether the values were measured with earlier settings of the recipe.
        verdict, reason: filled in by `recipe_verdict.judge`.
    """

    row: RecipeRow
    column: Column
    values: list[float | str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    earlier: bool = False
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
    def error(self) -> float | None:
        """Standard error of the mean over the seeds; None for a single seed, or if a number is infinite."""
        if len(self.numbers) < 2 or not all(map(math.isfinite, self.numbers)):
            return None
        return statistics.stdev(self.numbers) / math.sqrt(len(self.numbers))

    @property
    def published(self) -> Value | None:
        return self.row.published.get(self.column.name)

    @property
    def published_spread(self) -> float | None:
        return self.row.spread.get(self.column.name)

    @property
    def published_error(self) -> float | None:
        """Standard error of the published mean; None if the document gives no spread."""
        if self.published_spread is None:
            return None
        return self.published_spread / math.sqrt(self.column.published_seeds)

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


def missing_reason(measure: str, diverged: bool) -> str:
    """Why a finished run has no value of a measure."""
    if diverged:
        return DIVERGED
    return NO_TEST if measure.startswith("test_") else NOTHING
