"""Whether means over seeds differ by more than chance: Welch's t-test, and Holm's correction for several tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pvariance, stdev

from scipy.stats import ttest_ind_from_stats

LEVEL = 0.05


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean, ``s / √n``; nan for fewer than two values."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def welch(first: Sequence[float], second: Sequence[float]) -> float:
    """The p-value of Welch's t-test, two-sided; nan for fewer than two values on a side.

    Values without any spread differ surely if their means do.

    >>> round(welch([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), 3)
    0.021
    """
    if min(len(first), len(second)) < 2:
        return math.nan
    if pvariance(first) == pvariance(second) == 0:
        return float(first[0] == second[0])
    # From means and deviations: for values that are all alike the test of the values themselves warns.
    numbers = [number(values) for values in (first, second) for number in (fmean, stdev, len)]
    return float(ttest_ind_from_stats(*numbers, equal_var=False).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number, in their order (Holm 1979); nan stays and does not count.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [math.nan] * len(p_values), 0.0
    tested = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    for rank, (p, i) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - rank)))
        corrected[i] = largest
    return corrected


def against_best(groups: Sequence[Sequence[float]], higher_is_better: bool) -> tuple[int | None, list[float]]:
    """The place of the group with the best mean, and the corrected p-value of each other group against it.

    Both are None and nan where there is nothing to compare: fewer than two groups with a value.
    """
    means = {i: fmean(values) for i, values in enumerate(groups) if values}
    if len(means) < 2:
        return None, [math.nan] * len(groups)
    best = (max if higher_is_better else min)(means, key=means.__getitem__)
    tested = [math.nan if i == best else welch(values, groups[best]) for i, values in enumerate(groups)]
    return best, holm(tested)
