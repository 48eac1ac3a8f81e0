"""`DataColumn`, the description of one column, and the numbers that a model reads in its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from evenflow.checks import number, one_of, whole_number

COLUMN_KINDS = ("number", "category", "gap")
FILLS = ("mean", "previous")


@dataclass(frozen=True)
class DataColumn:
    """One column of the data.

    Args:
        name: as the user's table calls it.
        kind: "number"; "category" for a column with one of several values; or "gap", for an input, the time since the
            step before, which is computed from the column of times.
        mean, deviation: of a number over the training data; the model sees ``(x - mean) / deviation``.
        categories: the values of a category, all whole numbers or all text: for a target of classification in the order
            of the model's outputs. An input of this kind becomes one number for each value, 1 for the one it has,
            unless it has an `embedding`.
        missing: what a missing input (nan) is replaced by: "mean", or "previous", the value of the step before and the
            mean at the start. Default: a missing value is an error. A missing category is none of the values.
        mask: whether the model also reads a number that is 1 where the input was missing.
        known: whether an input of a forecaster is known ahead, such as a weekday: the model reads its values at the
            steps that it predicts, and does not predict it.
        embedding: of an input that is a category: the model reads its position, in place of which it has a trained
            vector of this size. The position after the last one stands for a missing value.

    >>> column = DataColumn("ax", mean=0.1, deviation=2.5)
    >>> DataColumn("activity", "category", categories=("resting", "walking")).categories
    ('resting', 'walking')
    """

    name: str
    kind: str = "number"
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[int, ...] | tuple[str, ...] = ()
    missing: str | None = None
    mask: bool = False
    known: bool = False
    embedding: int | None = None

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
        if self.missing is not None:
            one_of(f"missing of column {self.name!r}", self.missing, FILLS)
        if type(self.mask) is not bool or (self.mask and (self.missing is None or self.kind == "category")):
            raise ValueError(f"mask of column {self.name!r} must be false, or true for a number with missing values")

        if type(self.known) is not bool or (self.known and self.kind == "gap"):
            raise ValueError(f"known of column {self.name!r} must be false, or true for a number or a category")
        if self.embedding is not None:
            whole_number(f"embedding of column {self.name!r}", self.embedding, 1)
            if self.kind != "category":
                raise ValueError(f"embedding belongs to a category, column {self.name!r} is a {self.kind}")

    @property
    def width(self) -> int:
        """How many numbers the model reads for a value of this column."""
        if self.kind == "category":
            return len(self.categories) if self.embedding is None else 1
        return 1 + self.mask


def read_numbers(columns: Sequence[DataColumn], x: Tensor) -> Tensor:
    """The numbers that a model reads in place of the columns, not scaled yet.

    Shapes:
        x ``(..., T, C)``, categories as positions in ``column.categories``, missing values as nan; result
        ``(..., T, W)``.
    """
    if all(column.kind != "category" and column.missing is None for column in columns):
        return x
    parts = []
    for place, column in enumerate(columns):
        values = x[..., place]
        if column.embedding is not None:
            parts.append(values.nan_to_num(len(column.categories))[..., None])
            continue
        if column.kind == "category":
            parts.append(values[..., None] == torch.arange(len(column.categories), device=x.device))
            continue
        absent = values.isnan()
        parts.append((_filled(values, absent, column) if column.missing else values)[..., None])
        if column.mask:
            parts.append(absent[..., None])
    return torch.cat([part.to(x.dtype) for part in parts], -1)


def read_ahead(columns: Sequence[DataColumn], x: Tensor, horizon: int) -> Tensor:
    """The numbers of `read_numbers`, of columns that are known ahead those of the next steps.

    Beyond the last step such a column is its mean, or no category.

    Shapes:
        x ``(..., T, V)``; result ``(..., T, W)``, with `horizon` numbers in place of each that is known ahead.
    """
    parts, place, steps = [], 0, x.shape[-2]
    for column in columns:
        block = x[..., place : place + column.width]
        place += column.width
        if not column.known:
            parts.append(block)
            continue
        beyond = block.new_zeros((*block.shape[:-2], horizon, column.width))
        if column.kind == "number":
            beyond[..., 0] = column.mean
        elif column.embedding is not None:
            beyond[...] = len(column.categories)
        longer = torch.cat([block, beyond], -2)
        parts += [longer[..., ahead : ahead + steps, :] for ahead in range(1, horizon + 1)]
    return torch.cat(parts, -1)


def unknown_categories(columns: Sequence[DataColumn], x: Tensor) -> Tensor:
    """Which cells ``(..., C)`` hold something else than the position of a category."""
    wrong = torch.zeros(x.shape, dtype=torch.bool, device=x.device)
    for place, column in enumerate(columns):
        if column.kind == "category":
            values = x[..., place]
            known = (values >= 0) & (values < len(column.categories)) & (values == values.round())
            wrong[..., place] = ~(known | values.isnan() if column.missing else known)
    return wrong


def _filled(values: Tensor, absent: Tensor, column: DataColumn) -> Tensor:
    mean = torch.full_like(values, column.mean)
    if column.missing == "mean":
        return torch.where(absent, mean, values)
    steps = torch.arange(values.shape[-1], device=values.device)
    latest = torch.where(absent, -1, steps).cummax(-1).values  # the last step that has a value
    last_values = values.gather(-1, latest.clamp(min=0))
    return torch.where(latest < 0, mean, last_values)


def scaled_columns(
    columns: Sequence[DataColumn], rows: np.ndarray, weights: np.ndarray | None = None
) -> tuple[DataColumn, ...]:
    """The columns with the means and deviations of these rows ``(S, C)``; a constant column is only shifted.

    A column with a way to fill missing values gets a mask if there are missing ones in these rows.

    Args:
        columns: with their names and kinds.
        rows: categories as positions in ``column.categories``, missing values as nan.
        weights: how much each row counts ``(S,)``. Default: all the same.
    """
    scaled = []
    for column, values in zip(columns, rows.astype(np.float64).T, strict=True):
        if column.kind == "category":
            scaled.append(column)
            continue
        known = ~np.isnan(values)
        present, counts = values[known], None if weights is None else weights[known]
        mean = float(np.average(present, weights=counts)) if len(present) else 0.0
        deviation = float(np.sqrt(np.average((present - mean) ** 2, weights=counts))) if len(present) else 0.0
        deviation = deviation if deviation > 0 and math.isfinite(deviation) else 1.0
        mask = column.missing is not None and len(present) < len(values)
        scaled.append(replace(column, mean=mean, deviation=deviation, mask=mask))
    return tuple(scaled)
