"""What a model reads and what its outputs mean: columns, scaling, labels. It is saved with the model, as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenflow.checks import number, one_of, whole_number
from evenflow.models.data_column import DataColumn, read_ahead, read_numbers
from evenflow.models.table_values import TIME_UNITS

KINDS = ("classification", "multilabel", "regression", "next")
READOUTS = ("last", "every")


@dataclass(frozen=True)
class DataSchema:
    """What the inputs of a model are, and what its outputs mean.

    Args:
        kind: "classification" (outputs are scores of one of several labels), "multilabel" (scores of labels that can
            hold together), "regression" (numbers), or "next" (the inputs of the next step).
        readout: "last" for one answer after the last step, "every" for one at each step.
        inputs: the columns that the model reads, in their order.
        targets: the columns it predicts: one of kind category for classification; for kind "next" none, since they are
            the inputs that are numbers.
        vocabulary: the number of symbols if the one input is a whole number below it, else None.
        sequence, time: names of the columns that say which sequence a row belongs to, and when it was measured. Both
            may be missing in a table, the time only if no input is a gap.
        time_unit: whether times are a "number" or a "timestamp"; rows are sorted by them. None if the training data had
            no times; a column of that name is then ignored.
        time_step: the median time between two steps of the training data, in seconds for timestamps.
        length: steps of the pieces that the sequences of a table are cut into; None if they stay whole.
        horizon: for kind "next", how many of the next steps the model predicts at once, at each step. With 1 it reads
            its own predictions to forecast further.

    >>> activity = DataColumn("activity", "category", categories=("resting", "walking"))
    >>> schema = DataSchema("classification", "last", (DataColumn("ax"), DataColumn("ay")), (activity,))
    >>> schema.labels
    ('resting', 'walking')
    """

    kind: str
    readout: str
    inputs: tuple[DataColumn, ...]
    targets: tuple[DataColumn, ...] = ()
    vocabulary: int | None = None
    sequence: str = "sequence"
    time: str = "time"
    length: int | None = None
    time_unit: str | None = None
    time_step: float | None = None
    horizon: int = 1

    def __post_init__(self) -> None:
        one_of("kind", self.kind, KINDS)
        one_of("readout", self.readout, READOUTS)
        if not self.inputs:
            raise ValueError("inputs must be at least one column, got none")
        names = [column.name for column in self.inputs]
        if len(set(names)) < len(names):
            raise ValueError(f"inputs must be columns of different names, got {', '.join(names)}")
        for column in self.inputs:
            if column.kind == "gap" and self.time_unit is None:
                raise ValueError(f"input {column.name!r} of kind gap needs a column of times")
        if self.time_unit is not None:
            one_of("time_unit", self.time_unit, TIME_UNITS)
        if self.time_step is not None:
            number("time_step", self.time_step, above=0)
        if self.kind == "classification" and [column.kind for column in self.targets] != ["category"]:
            raise ValueError("classification needs one target of kind category")
        if self.kind in ("regression", "multilabel") and {column.kind for column in self.targets} != {"number"}:
            raise ValueError(f"{self.kind} needs targets of kind number")
        if self.kind == "next" and (self.targets or self.readout == "last"):
            raise ValueError("kind next has the inputs as its targets, and the readout every")
        if not self.predicted:
            raise ValueError("kind next needs an input of kind number that is not known ahead")
        whole_number("horizon", self.horizon, 1)
        if self.kind != "next" and (self.horizon > 1 or any(column.known for column in self.inputs)):
            raise ValueError(f"a horizon and inputs that are known ahead go with kind next, got {self.kind}")
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
        """The columns that the outputs are: the targets, or for kind "next" the inputs that are numbers.

        Of these inputs, those that are known ahead are not predicted.
        """
        if self.kind != "next":
            return self.targets
        return tuple(column for column in self.inputs if column.kind == "number" and not column.known)

    @property
    def known(self) -> tuple[DataColumn, ...]:
        """The inputs that are known ahead."""
        return tuple(column for column in self.inputs if column.known)

    @property
    def widths(self) -> list[int]:
        """How many numbers the model reads at a step for each input, which stand side by side."""
        return [column.width * (self.horizon if column.known else 1) for column in self.inputs]

    @property
    def width(self) -> int:
        """How many numbers the model reads at a step."""
        return sum(self.widths)

    @property
    def embedded(self) -> tuple[tuple[int, int, int], ...]:
        """The numbers that are positions of categories with an embedding: `column_embeddings` of `SequenceModel`."""
        columns, place = [], 0
        for column, width in zip(self.inputs, self.widths, strict=True):
            if column.embedding is not None:
                columns += [(place + step, len(column.categories) + 1, column.embedding) for step in range(width)]
            place += width
        return tuple(columns)

    @property
    def outputs(self) -> int:
        """How many numbers a model has to output; all columns of the next step, then those of the step after it."""
        return len(self.labels) or len(self.predicted) * self.horizon

    @property
    def read_names(self) -> list[str]:
        """Names of the numbers that the model reads.

        A column, "column: value" for a category, "column missing" for a mask; "column (+1)" is that of the next step.
        """
        names = []
        for column in self.inputs:
            if column.embedding is not None:
                own = [f"{column.name}: position in {len(column.categories):,} values"]
            elif column.kind == "category":
                own = [f"{column.name}: {value}" for value in column.categories]
            else:
                own = [column.name, *([f"{column.name} missing"] if column.mask else [])]
            ahead = range(1, self.horizon + 1)
            names += [f"{name} (+{step})" for step in ahead for name in own] if column.known else own
        return names

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs: the labels, or the predicted columns, with "(+1)" for the next step and so on."""
        names = [column.name for column in self.predicted]
        if self.horizon > 1:
            names = [f"{name} (+{step})" for step in range(1, self.horizon + 1) for name in names]
        return [str(label) for label in self.labels] or names

    @cached_property
    def input_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and deviations ``(W,)`` float64 of what the model reads; 0 and 1 for categories and masks."""
        means, deviations, place = np.zeros(self.width), np.ones(self.width), 0
        for column, width in zip(self.inputs, self.widths, strict=True):
            if column.kind != "category":
                values = slice(place, place + width, column.width)  # not the masks beside them
                means[values], deviations[values] = column.mean, column.deviation
            place += width
        return means, deviations

    @cached_property
    def output_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and deviations of the outputs ``(O,)`` float64; 0 and 1 where outputs are scores."""
        if self.labels:
            return np.zeros(self.outputs), np.ones(self.outputs)
        means = [column.mean for column in self.predicted] * self.horizon
        return np.array(means), np.array([column.deviation for column in self.predicted] * self.horizon)

    def scale_inputs(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Inputs ``(..., T, C)`` in the user's units as the model reads them ``(..., T, W)``, in float64.

        Categories are positions in ``column.categories`` and missing values nan. The caller rounds once. An input that
        is known ahead is read at the next steps; beyond the last step it is its mean, or no category.

        Args:
            out: where to put them, float64 in the shape of the result.
        """
        x = read_numbers(self.inputs, x)
        if self.known:
            x = read_ahead(self.inputs, x, self.horizon)
        if not self.input_scale[0].any() and bool((self.input_scale[1] == 1).all()):
            return x
        mean, deviation = (torch.from_numpy(values).to(x.device, non_blocking=True) for values in self.input_scale)
        return torch.sub(x, mean, out=out).div_(deviation)

    def in_units(self, outputs: Tensor) -> Tensor:
        """Outputs ``(..., O)`` of the model in the user's units, float64."""
        mean, deviation = (
            torch.from_numpy(values).to(outputs.device, non_blocking=True) for values in self.output_scale
        )
        return outputs.double() * deviation + mean

    def export_options(self) -> dict[str, Any]:
        """Arguments of `export.to_onnx` and `export.to_c`, with which a file works in the user's units.

        It reads raw inputs, for a category a number for each of its values or its position, and gives the probability
        of each label (classification), numbers (regression, next), or scores, of which those above 0 are true
        (multilabel).

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
