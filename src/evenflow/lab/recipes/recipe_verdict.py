"""Verdicts: compares measured with published values."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .measures import measure_of
from .recipe_cell import DIVERGED, EMPTY, NOTHING, TableCell
from .schema import Value

REPRODUCED, BETTER, WORSE, DIFFERENT = "reproduced", "better", "worse", "different"
NOISY, ONE_SEED = "too noisy to tell", "one seed"
NOT_COMPARABLE, NOTHING_PRINTED, TOO_SMALL = "not comparable", "no number printed", "too small to compare"
AGREES = "agrees"  # of one seed: within the tolerance of the recipe
SIGMAS = 2.0  # standard errors


def judge(cell: TableCell, scale: str, ordering: Mapping[str, str]) -> None:
    """Fill in the verdict of a cell.

    At full scale a value is better or worse if it differs from the published one by more than two standard errors of
    the difference, and by more than the rounding of the published digits; otherwise it is reproduced. A document that
    gives no spread has no standard error. Two limits keep noise from helping: a mean beyond the recipe's tolerance is
    never reproduced, but "too noisy to tell", and one seed of a trained model has the verdict "one seed", with the
    side it is on. At quick scale nothing is compared but what the scale does not change; all that can be said is the
    outcome of the row's `ordering`.
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
    incomparable = column.incomparable or cell.row.incomparable
    if incomparable and not (column.better == "same" and mean is not None and mean == target):
        return NOT_COMPARABLE, incomparable
    if target is None or mean is None:
        return NOT_COMPARABLE, "the document gives words"
    if math.isnan(mean):
        return NOT_COMPARABLE, NOTHING
    return _compare_numbers(cell, target, mean)


def _compare_numbers(cell: TableCell, target: float, mean: float) -> tuple[str, str]:
    """Verdict and reason for a mean and a published number, either of which may be infinite."""
    column = cell.column
    finite = {math.isfinite(value) for value in cell.numbers}
    if len(finite) > 1:
        return NOISY, "some seeds never get there"
    if DIVERGED in cell.gaps:
        return NOISY, f"{cell.gaps.count(DIVERGED)} of {len(cell.gaps) + len(cell.values)} seeds diverged"
    difference = 0.0 if mean == target else abs(mean - target)
    # A rounding error in the last digit of a published value is no difference.
    digits = rounding(cell.published) + 1e-9 * (abs(target) if math.isfinite(target) else 0.0)
    if column.better == "same" or not measure_of(column).trains:
        exact = difference <= max(column.tolerance, digits)
        return (REPRODUCED if exact else DIFFERENT if column.better == "same" else _side(cell, mean, target)), ""
    if len(cell.numbers) < 2:
        near = difference <= max(column.tolerance, digits)
        return ONE_SEED, AGREES if near else _side(cell, mean, target)
    noise = SIGMAS * math.hypot(cell.error or 0.0, cell.published_error or 0.0)
    if difference > max(noise, digits):
        return _side(cell, mean, target), ""
    return (REPRODUCED, "") if difference <= max(column.tolerance, digits) else (NOISY, "")


def _side(cell: TableCell, mean: float, target: float) -> str:
    return BETTER if (mean > target) == (cell.column.better == "higher") else WORSE


def rounding(published: Value | None) -> float:
    """Half a unit of the last digit that a number was published with; 0 for a word, a truth value or an infinity.

    >>> rounding(0.492), rounding(97.0), rounding(300)
    (0.0005, 0.05, 0.5)
    """
    if isinstance(published, bool | str) or published is None or not math.isfinite(published):
        return 0.0
    mantissa, _, exponent = repr(published).partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
