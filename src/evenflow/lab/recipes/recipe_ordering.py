"""The ordering of rows that a document claims, and whether the measured values confirm it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenflow.lab.training.settings import VALIDATE_EVERY

from .configs import config_of
from .measures import measure_of
from .recipe_cell import DIVERGED, TableCell
from .schema import Column, Recipe

HOLDS, FAILS, UNDECIDED = "ordering holds", "ordering does not hold", "too small to tell"
ONE_SEED_HOLDS, ONE_SEED_FAILS = "ordering holds with one seed", "ordering does not hold with one seed"
MIXED = "rows have different settings"
OUTCOMES = (HOLDS, ONE_SEED_HOLDS, UNDECIDED, MIXED, ONE_SEED_FAILS, FAILS)  # from the best to the worst


@dataclass(frozen=True)
class Pair:
    """A claim of the document, that one row is better than another, and its outcome."""

    better: str
    worse: str
    outcome: str


def judge_ordering(recipe: Recipe, cells: Mapping[tuple[str, str], TableCell], scale: str = "full") -> list[Pair]:
    """The outcome of the document's claims about the first column, for rows that were measured."""
    column = recipe.columns[0]
    pairs = []
    for chain in recipe.claims(scale):
        measured = [label for label in chain if rank(cells.get((label, column.name)), column) is not None]
        for first, second in itertools.pairwise(measured):
            outcome = compare_rows(recipe, cells[first, column.name], cells[second, column.name], scale)
            pairs.append(Pair(first, second, outcome))
    return pairs


def compare_rows(recipe: Recipe, first: TableCell, second: TableCell, scale: str = "full") -> str:
    """The outcome of the claim that the first of two cells of one column is better; both must have a rank.

    The difference must be larger than two standard errors, than the recipe's resolution in its first column, and than
    an interval of validations where the column counts updates.
    """
    column = first.column
    if first.earlier != second.earlier:
        return MIXED
    a, b = rank(first, column), rank(second, column)
    assert a is not None
    assert b is not None
    gap = a - b if column.better == "higher" else b - a
    resolution = recipe.resolution if column == recipe.columns[0] else 0.0
    labels = (first.row.label, second.row.label)
    least = max(resolution, _noise(first, second), _validation_interval(recipe, column, labels, scale))
    if recipe.scale(scale).ordering is False or math.isnan(gap) or abs(gap) <= least:
        return UNDECIDED
    if scale == "full" and measure_of(column).trains and min(_seeds(first), _seeds(second)) < 2:
        return ONE_SEED_HOLDS if gap > 0 else ONE_SEED_FAILS
    return HOLDS if gap > 0 else FAILS


def _seeds(cell: TableCell) -> int:
    """The seeds that a cell's rank follows from."""
    return len(cell.numbers) or len(cell.gaps)


def _noise(a: TableCell, b: TableCell) -> float:
    """Twice the standard error of the difference of two means; 0 if one of them has a single seed."""
    return 0.0 if a.error is None or b.error is None else 2 * math.hypot(a.error, b.error)


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
    for outcome in OUTCOMES:
        for pair in pairs:
            if pair.outcome == outcome:
                worst[pair.better] = worst[pair.worse] = outcome
    return worst


def summary(pairs: Sequence[Pair]) -> str:
    """One sentence about the ordering; empty if there is none."""
    if not pairs:
        return ""
    counts = {word: sum(pair.outcome == word for pair in pairs) for word in OUTCOMES}
    parts = [f"The document's ordering holds in {counts[HOLDS]} of {len(pairs)} pairs"]
    if counts[ONE_SEED_HOLDS]:
        parts.append(f"holds with one seed in {counts[ONE_SEED_HOLDS]}")
    for word, how in ((FAILS, ""), (ONE_SEED_FAILS, " with one seed")):
        failed = "; ".join(f"{p.better} is not better than {p.worse}" for p in pairs if p.outcome == word)
        if failed:
            parts.append(f"does not hold{how} in {counts[word]} ({failed})")
    if counts[UNDECIDED]:
        parts.append(f"{counts[UNDECIDED]} too small to tell")
    if counts[MIXED]:
        parts.append(f"in {counts[MIXED]} the rows have different settings")
    return ", ".join(parts) + "."
