"""Downsampling for plots: by extremes, by means over groups, and by the outliers of a table's blocks."""

from __future__ import annotations

import itertools

import numpy as np


def points(lines: int, each: int, page: int) -> int:
    """Most points of a line: `each`, or an equal share of `page` if there are many lines."""
    return max(60, min(each, page // max(1, lines)))


def extremes(value: np.ndarray, most: int) -> np.ndarray:
    """Indices of at most `most` values: the first, the last, and the smallest and largest of equal stretches.

    Means would hide a single loss that exploded; extremes do not.

    >>> extremes(np.array([1.0, 1.0, 9.0, 1.0, 0.0, 1.0, 1.0]), most=4)
    array([0, 2, 4, 6])
    """
    if len(value) <= most:
        return np.arange(len(value))
    edges = np.linspace(0, len(value), max(1, most // 2 - 1) + 1).astype(int)
    spans = list(itertools.pairwise(edges.tolist()))
    least = [a + int(np.argmin(value[a:b])) for a, b in spans]
    largest = [a + int(np.argmax(value[a:b])) for a, b in spans]
    return np.unique([0, *least, *largest, len(value) - 1])


def means(step: np.ndarray, value: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Means over at most `most` equal groups; the last value is kept as it is."""
    if len(value) <= most:
        return step, value
    edges = np.linspace(0, len(value) - 1, most).astype(int)
    sizes = np.diff(np.append(edges[:-1], len(value) - 1))
    pair = [np.append(np.add.reduceat(a[:-1], edges[:-1]) / sizes, a[-1]) for a in (step.astype(float), value)]
    return pair[0], pair[1]


def running_mean(value: np.ndarray, window: int) -> np.ndarray:
    """Mean over the `window` values around each value, fewer at both ends.

    A difference of running sums would lose all digits of small values after a huge one.
    """
    ones = np.ones(2 * (window // 2) + 1)
    return np.convolve(value, ones, "same") / np.convolve(np.ones(len(value)), ones, "same")


def groups(count: int, most: int) -> np.ndarray:
    """Edges ``(G + 1)``, from 0 to `count`, of at most `most` groups of neighbours of nearly equal size."""
    return np.unique(np.linspace(0, count, min(count, max(1, most)) + 1).astype(int))


def outliers(table: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """One value for each block of a table: the one furthest from the table's median, so that peaks and holes remain.

    A block that contains nan is nan. `rows` and `columns` are edges, as `groups` returns them.
    """
    whole = table[np.isfinite(table)]
    middle = np.median(whole) if whole.size else 0.0
    least, most = (
        reduce.reduceat(reduce.reduceat(table, rows[:-1], axis=0), columns[:-1], axis=1)
        for reduce in (np.minimum, np.maximum)
    )
    return np.where(most - middle >= middle - least, most, least)
