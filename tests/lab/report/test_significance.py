"""Welch's test and Holm's correction against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from evenflow.lab.report.significance import against_best, holm, standard_error, welch


def test_welch_is_the_test_of_two_means_with_different_variances() -> None:
    first, second = [0.91, 0.93, 0.92, 0.95], [0.80, 0.88, 0.84, 0.75, 0.86]
    a, b = (np.var(v, ddof=1) / len(v) for v in (first, second))
    statistic = (np.mean(first) - np.mean(second)) / math.sqrt(a + b)
    freedom = (a + b) ** 2 / (a**2 / 3 + b**2 / 4)
    assert welch(first, second) == pytest.approx(2 * student.sf(abs(statistic), freedom))
    assert welch(first, second) == pytest.approx(welch(second, first))


def test_values_without_spread_and_single_values() -> None:
    assert welch([1.0, 1.0], [1.0, 1.0]) == 1
    assert welch([1.0, 1.0], [0.5, 0.5]) == 0
    assert math.isnan(welch([1.0], [0.5, 0.4]))
    assert math.isnan(standard_error([1.0]))
    assert standard_error([1.0, 3.0]) == pytest.approx(1.0)


def test_seeds_of_one_distribution_are_rarely_told_apart() -> None:
    """Of four equal systems with five seeds each, one is marked in about one table of twenty, not in one of seven."""
    random = np.random.default_rng(0)
    tables = 2000
    marked = sum(
        min(p for p in against_best(random.standard_normal((4, 5)).tolist(), True)[1] if not math.isnan(p)) < 0.05
        for _ in range(tables)
    )
    assert marked / tables < 0.1  # the best is chosen by the same numbers, so it is a little more than 0.05


def test_correction_keeps_the_order_and_what_is_not_tested() -> None:
    assert holm([0.04, math.nan, 0.01, 0.5])[::2] == pytest.approx([0.08, 0.03])
    assert math.isnan(holm([0.04, math.nan])[1])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_best_is_the_best_mean() -> None:
    groups = [[0.1, 0.2], [0.9, 0.8], []]
    best, p = against_best(groups, True)
    assert best == 1
    assert p[0] == welch(groups[0], groups[1])
    assert math.isnan(p[1])
    assert math.isnan(p[2])
    assert against_best(groups, False)[0] == 0
    assert against_best([[0.1, 0.2]], True)[0] is None


def test_values_that_are_all_alike_on_one_side_give_no_warning(recwarn):
    assert welch([1.0, 1.0], [0.5, 0.8]) == pytest.approx(0.2578, abs=2e-3)
    assert not recwarn.list
