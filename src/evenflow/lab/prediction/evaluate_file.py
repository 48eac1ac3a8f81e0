"""How good predictions for a file are: accuracy and confusion, or errors in the units of the file."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenflow.models import DataSchema, Predictor

from .file_blocks import Progress, file_blocks


@dataclass
class Evaluation:
    """The result of `evaluate_file`.

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
        """For each label its `precision`, `recall` and number of true answers `count`; nan where there is none."""
        assert self.confusion is not None
        right, true, predicted = np.diag(self.confusion), self.confusion.sum(1), self.confusion.sum(0)
        return [
            {
                "label": label,
                "precision": right[i] / predicted[i] if predicted[i] else math.nan,
                "recall": right[i] / true[i] if true[i] else math.nan,
                "count": int(true[i]),
            }
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
        error, centred = true - predicted, true - self.schema.output_scale[0]  # the shift keeps the variance exact
        sums = [np.ones_like(error), abs(error), error**2, centred, centred**2]
        total = np.stack([each.sum(0) for each in sums])
        self._sums = total if self._sums is None else self._sums + total


def evaluate_file(
    predictor: Predictor, source: str | os.PathLike[str], *, progress: Progress | None = None
) -> Evaluation:
    """Compare predictions with the targets of a file, block by block.

    Args:
        predictor: what `evenflow.load` returns.
        source: a CSV or npz file in the layout of the training data, with its targets; for kind "next" the targets are
            the steps themselves.
        progress: called with the bytes read so far and those of the file.
    """
    schema = predictor.schema
    if schema.kind == "multilabel":
        raise ValueError("a file has one label or numbers in a row, and this model predicts labels that hold together")
    result = Evaluation(schema)
    for block in file_blocks(source, schema, learned=True, progress=progress):
        result.sequences += len(block.inputs)
        if schema.kind == "classification":
            places = {label: place for place, label in enumerate(schema.labels)}
            found = np.concatenate([np.atleast_1d(each) for each in predictor.predict(block.inputs)])
            true = np.concatenate([np.atleast_1d(each) for each in block.targets or []])
            result.add_labels(true, np.array([places[label] for label in found.tolist()]))
        elif schema.kind == "next":
            longer = [each for each in block.inputs if len(each) > 1]
            if longer:
                found = np.concatenate(predictor.predict([each[:-1] for each in longer]))
                result.add_numbers(np.concatenate([each[1:] for each in longer]).astype(np.float64), found)
        else:
            width = len(schema.targets)
            found = np.concatenate([np.reshape(each, (-1, width)) for each in predictor.predict(block.inputs)])
            result.add_numbers(np.concatenate([np.reshape(each, (-1, width)) for each in block.targets or []]), found)
    if not result.answers:
        raise ValueError(f"file {str(source)!r} has nothing to compare: predicting the next step needs two steps")
    return result
