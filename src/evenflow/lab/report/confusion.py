"""The confusion matrix and the table of classes, as a page shows them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenflow.lab.report.numbers import number
from evenflow.models.prediction_quality import label_shares

MOST_WHOLE, SHOWN = 15, 12  # classes up to which a matrix is shown whole; classes of a larger one
MOST_ROWS = 60  # of the table of classes
PAIRS = 3  # confusions that are named
DIGITS = 3


@dataclass(frozen=True)
class ConfusionTable:
    """A confusion matrix to show.

    Attributes:
        labels: of rows and columns; the last stands for all other classes, if there are any.
        rows: for each row its cells: the count as text, its share of the row, and whether the cell is on the diagonal.
        others: how many classes are summed up in the last row and column.
    """

    labels: list[str]
    rows: list[list[tuple[str, float, bool]]]
    others: int


def confusion_table(labels: list[str], confusion: np.ndarray) -> ConfusionTable:
    """The whole matrix, or the classes with the most mistakes and the sums of all others."""
    chosen = np.arange(len(labels)) if len(labels) <= MOST_WHOLE else most_confused(confusion, SHOWN)
    others = np.setdiff1d(np.arange(len(labels)), chosen)
    shown = [labels[place] for place in chosen]
    matrix = confusion[np.ix_(chosen, chosen)]
    right = np.eye(len(chosen), dtype=bool)
    if len(others):
        shown.append(f"{len(others)} others")
        rest = confusion[np.ix_(others, others)].sum()
        right = np.pad(right, (0, 1))  # among the others, an answer may be right or wrong
        matrix = np.block(
            [
                [matrix, confusion[np.ix_(chosen, others)].sum(1, keepdims=True)],
                [confusion[np.ix_(others, chosen)].sum(0, keepdims=True), np.array([[rest]])],
            ]
        )
    shares = matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    rows = [
        [(f"{int(count):,}", float(share), bool(is_right)) for count, share, is_right in zip(*cells, strict=True)]
        for cells in zip(matrix, shares, right, strict=True)
    ]
    if len(others):
        rows[-1][-1] = (rows[-1][-1][0], 0.0, True)  # no colour
    return ConfusionTable(shown, rows, len(others))


def most_confused(confusion: np.ndarray, most: int) -> np.ndarray:
    """The positions of the classes that take part in the most mistakes, ascending."""
    wrong = confusion - np.diag(np.diag(confusion))
    return np.sort(np.argsort(-(wrong.sum(0) + wrong.sum(1)), kind="stable")[:most])


def confused_pairs(labels: list[str], confusion: np.ndarray) -> str:
    """A sentence about the most frequent confusions; empty if every answer is right."""
    wrong = confusion - np.diag(np.diag(confusion))
    places = np.argsort(-wrong, axis=None, kind="stable")[:PAIRS]
    pairs = [(int(place) // len(labels), int(place) % len(labels)) for place in places]
    named = [f"{labels[i]} taken for {labels[j]} ({int(wrong[i, j]):,})" for i, j in pairs if wrong[i, j]]
    return f"Most frequent mistakes: {'; '.join(named)}." if named else ""


@dataclass(frozen=True)
class ClassTable:
    """Rows of a class with its precision, recall, F1 and support as text, and how many classes are left out."""

    rows: list[list[str]]
    left_out: int


def class_table(labels: list[str], confusion: np.ndarray) -> ClassTable:
    """All classes, or those with the most mistakes."""
    chosen = np.arange(len(labels)) if len(labels) <= MOST_ROWS else most_confused(confusion, MOST_ROWS)
    shares = label_shares(confusion)
    rows = [
        [labels[i], *(share(shares[name][i]) for name in ("precision", "recall", "f1")), f"{int(shares['count'][i]):,}"]
        for i in chosen
    ]
    return ClassTable(rows, len(labels) - len(chosen))


def share(value: float) -> str:
    """A share with three digits; a dash for a share of nothing."""
    return "–" if np.isnan(value) else number(float(value), DIGITS)
