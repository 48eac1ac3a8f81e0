from __future__ import annotations

import numpy as np
import pytest

from evenflow.lab.report import downsample

POINTS = 400


def test_extremes_keep_every_spike_the_first_and_the_last() -> None:
    value = np.random.default_rng(0).random(100_000)
    value[[31_234, 77_777]] = 50.0, -3.0
    kept = downsample.extremes(value, POINTS)
    assert len(kept) <= POINTS
    assert {0, 31_234, 77_777, 99_999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()


@pytest.mark.parametrize("size", [0, 1, 5, POINTS], ids=lambda n: f"{n} points")
def test_few_points_are_all_kept(size: int) -> None:
    assert downsample.extremes(np.zeros(size), POINTS).tolist() == list(range(size))


@pytest.mark.parametrize("size", [POINTS + 1, 1_003, 54_321], ids=lambda n: f"{n} points")
def test_the_envelope_is_the_true_one(size: int) -> None:
    value = np.random.default_rng(size).standard_normal(size)
    kept = downsample.extremes(value, POINTS)
    assert len(kept) <= POINTS
    for part in np.array_split(np.arange(size), 7):  # whatever stretch one looks at, its ends are near those shown
        inside = kept[(kept >= part[0]) & (kept <= part[-1])]
        assert value[inside].max() == value[part].max()
        assert value[inside].min() == value[part].min()


def test_means_keep_the_mean_and_the_last_value() -> None:
    step, value = np.arange(1, 100_001), np.random.default_rng(0).random(100_000)
    thin_step, thin_value = downsample.means(step, value, POINTS)
    assert len(thin_value) == len(thin_step) == POINTS
    assert (thin_step[-1], thin_value[-1]) == (100_000, value[-1])
    assert (np.diff(thin_step) > 0).all()
    assert thin_value.mean() == pytest.approx(value.mean(), abs=2e-3)  # unequal groups move the mean a little


def test_running_mean_is_the_mean_around() -> None:
    value = np.random.default_rng(0).random(50)
    smooth = downsample.running_mean(value, 5)
    assert smooth[20] == pytest.approx(value[18:23].mean())
    assert smooth[0] == pytest.approx(value[:3].mean())


def test_running_mean_forgets_a_spike() -> None:
    value = np.full(100, 0.1)
    value[10] = 1e30
    assert downsample.running_mean(value, 5)[50:] == pytest.approx(0.1)


def test_cells_keep_peaks_holes_and_gaps() -> None:
    table = np.zeros((40, 90))
    table[7, 11], table[20, 50], table[33, 80] = 5.0, -4.0, np.nan
    rows, columns = downsample.groups(40, 10), downsample.groups(90, 30)
    found = downsample.outliers(table, rows, columns)
    assert found.shape == (10, 30)
    assert found[1, 3] == 5.0
    assert found[5, 16] == -4.0
    assert np.isnan(found[8, 26])
    assert np.count_nonzero(found) == 3  # nan counts


def test_no_more_groups_than_members() -> None:
    assert downsample.groups(3, 10).tolist() == [0, 1, 2, 3]
    assert downsample.groups(7, 2).tolist() == [0, 3, 7]
