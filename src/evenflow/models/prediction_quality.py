"""How good predictions are: accuracy and confusion, or errors in the user's units."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenflow.models.data_schema import DataSchema


@dataclass
class Evaluation:
    """Predictions compared with the truth, in as many blocks as `add_labels` or `add_numbers` is called with.

    Attributes:
        schema: what the model predicts.
        sequences, answers: how many were compared.
        confusion: of a classification, ``(labels, labels)``: row by the true label, column by the predicted one.
        errors: of numbers, a table with a row for each column that the model predicts: `mae`, `rmse` and `r2`.
    """

    schema: DataSchema
    sequences: int = 0
    confusion: np.ndarray | None = None
    _sums: np.ndarray | None = field(default=None, repr=False)  # of 1, |e|, e², y - m, (y - m)²

    @property
    def answers(self) -> int:
        if self.confusion is not None:
            return int(self.confusion.sum())
        return 0 if self._sums is None else int(self._sums[0, 0])

    @property
    def accuracy(self) -> float:
        """The share of answers that are right."""
        assert self.confusion is not None
        return float(self.confusion.trace() / self.confusion.sum())

    def by_label(self) -> list[dict[str, Any]]:
        """For each label its `precision`, `recall`, `f1` and `count`, see `label_shares`."""
        assert self.confusion is not None
        shares = {name: values.tolist() for name, values in label_shares(self.confusion).items()}
        return [
            {"label": label, **{name: values[i] for name, values in shares.items()}}
            for i, label in enumerate(self.schema.labels)
        ]

    @property
    def errors(self) -> list[dict[str, Any]]:
        assert self._sums is not None
        rows = []
        for column, (count, absolute, square, first, second) in zip(self.schema.predicted, self._sums.T, strict=True):
            variance = second - first**2 / count
            r2 = 1 - square / variance if variance > 0 else math.nan
            mae, rmse = absolute / count, math.sqrt(square / count)
            rows.append({"column": column.name, "mae": float(mae), "rmse": rmse, "r2": float(r2)})
        return rows

    def add_labels(self, true: np.ndarray, predicted: np.ndarray) -> None:
        """Count positions of labels."""
        size = len(self.schema.labels)
        counts = np.bincount(true * size + predicted, minlength=size**2).reshape(size, size)
        self.confusion = counts if self.confusion is None else self.confusion + counts

    def add_numbers(self, true: np.ndarray, predicted: np.ndarray) -> None:
        """Add numbers ``(S, O)``."""
        shift = self.schema.output_scale[0][: true.shape[1]]  # keeps the variance exact
        error, centred = true - predicted, true - shift
        sums = [np.ones_like(error), abs(error), error**2, centred, centred**2]
        total = np.stack([each.sum(0) for each in sums])
        self._sums = total if self._sums is None else self._sums + total


def label_shares(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """`precision`, `recall`, `f1` and `count` of each label ``(L,)``, of a confusion matrix ``(L, L)``.

    A share of nothing is nan: the precision of a label that is never predicted, the recall of one that never occurs,
    and the F1 of one that does neither.
    """
    right, true, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    with np.errstate(invalid="ignore"):
        return {
            "precision": right / predicted,
            "recall": right / true,
            "f1": 2 * right / (true + predicted),
            "count": true,
        }
