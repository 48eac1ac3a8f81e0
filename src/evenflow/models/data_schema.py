"""What a model reads and what its outputs mean: columns, scaling, labels. It is saved with the model, as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenflow.checks import number, one_of, whole_number

KINDS = ("classification", "multilabel", "regression", "next")
READOUTS = ("last", "every")
COLUMN_KINDS = ("number", "category")


@dataclass(frozen=True)
class DataColumn:
    """One column of the data.

    Args:
        name: as the user's table calls it.
        kind: "number", or "category" for a column with one of several values (a target of classification).
        mean, deviation: of a number over the training data; the model sees ``(x - mean) / deviation``.
        categories: the values of a category in the order of the model's outputs, all whole numbers or all text.
    """

    name: str
    kind: str = "number"
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[int, ...] | tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"the name of a column must be text, got {self.name!r}")
        one_of(f"kind of column {self.name!r}", self.kind, COLUMN_KINDS)
        number(f"mean of column {self.name!r}", self.mean)
        number(f"deviation of column {self.name!r}", self.deviation, above=0)
        kinds = {type(value) for value in self.categories}
        if kinds - {int, str} or len(kinds) > 1 or len(set(self.categories)) < len(self.categories):
            raise ValueError(f"categories of column {self.name!r} must be different numbers or different words")
        if (self.kind == "category") != bool(self.categories):
            raise ValueError(f"categories belong to a column of kind category, column {self.name!r} is a {self.kind}")


@dataclass(frozen=True)
class DataSchema:
    """What the inputs of a model are, and what its outputs mean.

    Args:
        kind: "classification" (outputs are scores of one of several labels), "multilabel" (scores of labels that can
            hold together), "regression" (numbers), or "next" (the inputs of the next step).
        readout: "last" for one answer after the last step, "every" for one at each step.
        inputs: the columns that the model reads, in their order.
        targets: the columns it predicts: one of kind category for classification; for kind "next" none, since they are
            the inputs.
        vocabulary: the number of symbols if the one input is a whole number below it, else None.
        sequence, time: names of the columns that say which sequence a row belongs to, and when it was measured. Both
            may be missing in a table; the time is not read.
        length: steps of the pieces that the sequences of a table are cut into; None if they stay whole.
    """

    kind: str
    readout: str
    inputs: tuple[DataColumn, ...]
    targets: tuple[DataColumn, ...] = ()
    vocabulary: int | None = None
    sequence: str = "sequence"
    time: str = "time"
    length: int | None = None

    def __post_init__(self) -> None:
        one_of("kind", self.kind, KINDS)
        one_of("readout", self.readout, READOUTS)
        if not self.inputs:
            raise ValueError("inputs must be at least one column, got none")
        names = [column.name for column in self.inputs]
        if len(set(names)) < len(names):
            raise ValueError(f"inputs must be columns of different names, got {', '.join(names)}")
        for column in self.inputs:
            one_of(f"kind of input {column.name!r}", column.kind, ("number",))
        if self.kind == "classification" and [column.kind for column in self.targets] != ["category"]:
            raise ValueError("classification needs one target of kind category")
        if self.kind in ("regression", "multilabel") and {column.kind for column in self.targets} != {"number"}:
            raise ValueError(f"{self.kind} needs targets of kind number")
        if self.kind == "next" and (self.targets or self.readout == "last"):
            raise ValueError("kind next has the inputs as its targets, and the readout every")
        for name in ("vocabulary", "length"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        if self.vocabulary is not None and len(self.inputs) > 1:
            raise ValueError(f"inputs must be one column with a vocabulary, got {len(self.inputs)}")
        for name in ("sequence", "time"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be the name of a column, got {getattr(self, name)!r}")

    @property
    def labels(self) -> tuple[int, ...] | tuple[str, ...]:
        """The labels of a classification, in the order of the model's outputs; empty for other kinds."""
        return self.targets[0].categories if self.kind == "classification" else ()

    @property
    def predicted(self) -> tuple[DataColumn, ...]:
        """The columns that the outputs are: the targets, or for kind "next" the inputs."""
        return self.inputs if self.kind == "next" else self.targets

    @property
    def outputs(self) -> int:
        """How many numbers a model has to output."""
        return len(self.labels) or len(self.predicted)

    @cached_property
    def input_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and deviations of the inputs ``(I,)`` float64."""
        return _scale(self.inputs)

    @cached_property
    def output_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and deviations of the outputs ``(O,)`` float64; 0 and 1 where outputs are scores."""
        return _scale(self.predicted) if not self.labels else (np.zeros(self.outputs), np.ones(self.outputs))

    def scale_inputs(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Inputs ``(..., I)`` in the user's units as the model reads them, in float64, which the caller rounds once.

        Args:
            out: where to put them, float64 in the shape of x.
        """
        mean, deviation = (torch.from_numpy(values) for values in self.input_scale)
        if not mean.any() and bool((deviation == 1).all()):
            return x
        return torch.sub(x, mean, out=out).div_(deviation)

    def in_units(self, outputs: Tensor) -> Tensor:
        """Outputs ``(..., O)`` of the model in the user's units, float64."""
        mean, deviation = (torch.from_numpy(values).to(outputs.device) for values in self.output_scale)
        return outputs.double() * deviation + mean

    def export_options(self) -> dict[str, Any]:
        """Arguments of `export.to_onnx` and `export.to_c`, with which a file works in the user's units.

        It reads raw inputs and gives the probability of each label (classification), numbers (regression, next), or
        scores, of which those above 0 are true (multilabel).

        >>> evenflow.export.to_onnx(predictor.model, "model.onnx", **predictor.schema.export_options())
        """
        options: dict[str, Any] = {"softmax": True} if self.kind == "classification" else {}
        for name, (mean, deviation) in {"scaling": self.input_scale, "output_scaling": self.output_scale}.items():
            if mean.any() or (deviation != 1).any():
                options[name] = (mean.tolist(), deviation.tolist())
        return options

    def to_dict(self) -> dict[str, Any]:
        """The schema as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, table: Any) -> DataSchema:
        """The schema of a dictionary that `to_dict` made; a ValueError says what is wrong with another."""
        values = _fields(cls, table, "the schema")
        for name in ("inputs", "targets"):
            listed = values.get(name, ())
            if not isinstance(listed, Sequence) or isinstance(listed, str):
                raise ValueError(f"{name} must be a list of columns, got {listed!r}")
            values[name] = tuple(_column(each) for each in listed)
        return cls(**values)


def _column(table: Any) -> DataColumn:
    values = _fields(DataColumn, table, "a column")
    categories = values.get("categories", ())
    if not isinstance(categories, Sequence) or isinstance(categories, str):
        raise ValueError(f"categories must be a list, got {categories!r}")
    return DataColumn(**{**values, "categories": tuple(categories)})


def _fields(kind: type, table: Any, what: str) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ValueError(f"{what} must be a table, got {table!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in table:
        if name not in fields:
            raise ValueError(f"{what} has no {name!r}, it has {', '.join(fields)}")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in table:
            raise ValueError(f"{what} must have a {name!r}")
    return dict(table)


def _scale(columns: Sequence[DataColumn]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([column.mean for column in columns]), np.array([column.deviation for column in columns])


def scaled_columns(names: Sequence[str], rows: np.ndarray, weights: np.ndarray | None = None) -> tuple[DataColumn, ...]:
    """Columns of numbers with the means and deviations of these rows ``(S, C)``; a constant column is only shifted.

    Args:
        weights: how much each row counts ``(S,)``. Default: all the same.
    """
    rows = rows.astype(np.float64)
    mean = np.average(rows, 0, weights)
    deviation = np.sqrt(np.average((rows - mean) ** 2, 0, weights))
    return tuple(
        DataColumn(name, mean=float(m), deviation=float(d) if d > 0 and math.isfinite(d) else 1.0)
        for name, m, d in zip(names, mean, deviation, strict=True)
    )
