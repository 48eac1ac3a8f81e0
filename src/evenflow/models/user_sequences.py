"""Sequences in the forms that users have them: arrays, ragged lists, tensors, and tables of pandas and polars."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evenflow.models.data_column import unknown_categories
from evenflow.models.data_schema import DataSchema
from evenflow.models.table_values import BadCell, column_values, cut_lengths, grouped, time_gaps, time_values

TABLES = ("pandas", "polars")


class UserBatch(NamedTuple):
    """Some of the sequences as a model reads them, on the device of the model.

    Attributes:
        rows: their numbers.
        inputs: ``(T, B, I)``, which the next batch may overwrite.
        lengths: ``(B,)`` on the CPU; None if all are T.
        finite: whether the sum of the inputs is a finite number; None for symbols. Asking waits for the device.
    """

    rows: np.ndarray
    inputs: Tensor
    lengths: Tensor | None
    finite: Tensor | None


class UserSequences:
    """N sequences to predict from, read in batches that are scaled as the training data were.

    Args:
        x: an array or tensor ``(N, T, I)``, or ``(N, T)`` for one input; a list of N arrays ``(T_n, I)`` or ``(T_n,)``
            of any lengths; or a table of pandas or polars with a row for each step, whose columns the schema names.
        schema: what the model reads.
        newest: read the last `schema.length` steps of each sequence only, and do not cut a table into pieces.

    Attributes:
        lengths: ``(N,)`` int64.
        rows: for a table the number of the row of each step, in the order of the sequences; else None.
        names: for a table with a column of sequences that are not cut, their names; else None.
        flat: whether each step is a single number and not an array of one.
        ragged: whether answers at every step come as a list, because the sequences did.
    """

    def __init__(self, x: Any, schema: DataSchema, newest: bool = False) -> None:
        self.schema, self.rows, self.flat, self.ragged = schema, None, False, False
        self.names: list[Any] | None = None
        self._arrays: np.ndarray | list[np.ndarray]
        if type(x).__module__.split(".")[0] in TABLES:
            length = None if newest else schema.length
            self._arrays, self.rows = _from_table(x, schema, length)
            if length is None and schema.sequence in x.columns:
                self.names = list(dict.fromkeys(x[schema.sequence].to_numpy().tolist()))
        elif isinstance(x, list | tuple) and (not x or np.ndim(x[0]) > 0):
            self._arrays, self.ragged = [self._one(each, n) for n, each in enumerate(x)], True
        else:
            self._arrays = self._together(_array(x, "X"))
        if newest and schema.length is not None:
            last = slice(-schema.length, None)
            if isinstance(self._arrays, np.ndarray):
                self._arrays = self._arrays[:, last]
            else:
                self._arrays = [each[last] for each in self._arrays]
        if not len(self._arrays):
            raise ValueError("X must hold at least one sequence, got none")
        self.lengths = np.array([len(each) for each in self._arrays], np.int64)
        if not self.lengths.all():
            raise ValueError(f"X must have a step in every sequence, sequence {int(self.lengths.argmin())} has none")

        self._coded = any(column.kind == "category" for column in schema.inputs)
        together = isinstance(self._arrays, np.ndarray)
        self._dtype = np.result_type(*{each.dtype for each in (self._arrays[:1] if together else self._arrays)})

        self._exact, self._rounded = torch.empty(0, dtype=torch.float64), torch.empty(0)

    def __len__(self) -> int:
        return len(self._arrays)

    def array(self, row: int) -> np.ndarray:
        """A sequence ``(T, I)`` in the user's units."""
        return self._arrays[row]

    def append_steps(self, steps: np.ndarray) -> None:
        """Lengthen each sequence by steps ``(N, S, I)`` in the user's units."""
        self._dtype = np.result_type(self._dtype, np.float32)
        steps = steps.astype(self._dtype)
        if isinstance(self._arrays, np.ndarray):
            self._arrays = np.concatenate([self._arrays, steps], 1)
        else:
            self._arrays = [np.concatenate(pair) for pair in zip(self._arrays, steps, strict=True)]
        self.lengths = self.lengths + steps.shape[1]

    def batch(self, rows: np.ndarray, device: torch.device | str = "cpu") -> UserBatch:
        """The sequences with these numbers. A GPU scales them itself, and this call does not wait for it."""
        lengths = self.lengths[rows]
        longest = int(lengths.max())
        x = self._raw(rows, lengths)
        same = None if (lengths == longest).all() else torch.from_numpy(lengths)
        if self.schema.vocabulary is not None:
            return UserBatch(rows, self._symbols(x[..., 0].transpose(0, 1), rows).to(device), same, None)
        if self._coded:
            self._check_categories(x, rows)
        if torch.device(device).type == "cuda":
            x = x.pin_memory().to(device, non_blocking=True)
        scaled = self._scaled(x)
        if same is not None:
            steps = torch.arange(longest, device=x.device)[:, None]
            scaled = scaled * (steps < same.to(x.device, non_blocking=True))[..., None]
        return UserBatch(rows, scaled.to(device), same, torch.isfinite(scaled.sum()))

    def check(self, batch: UserBatch) -> None:
        """Raise a ValueError that names the first number of a batch that is not finite."""
        if batch.finite is None or batch.finite:
            return
        x = self._raw(batch.rows, self.lengths[batch.rows])
        wrong = torch.nonzero(~torch.isfinite(self._scaled(x)))
        if len(wrong):  # otherwise only their sum is infinite
            step, place, number = wrong[0].tolist()
            number = int(np.repeat(np.arange(len(self.schema.inputs)), self.schema.widths)[number])
            raise ValueError(
                f"X must hold finite numbers, step {step} of sequence {int(batch.rows[place])} has "
                f"{x[place, step, number].item()!r} in {self.schema.inputs[number].name}"
            )

    def _raw(self, rows: np.ndarray, lengths: np.ndarray) -> Tensor:
        """The sequences ``(B, T, C)`` in the user's units, with zeros after the end of each."""
        if isinstance(self._arrays, np.ndarray):
            whole = rows[-1] - rows[0] + 1 == len(rows)  # a view, if they stand side by side
            taken = self._arrays[rows[0] : rows[-1] + 1] if whole else self._arrays[rows]
            return torch.from_numpy(np.ascontiguousarray(taken))
        first = self._arrays[int(rows[0])]
        padded = np.zeros((len(rows), int(lengths.max()), *first.shape[1:]), self._dtype)
        for place, row in enumerate(rows.tolist()):
            padded[place, : lengths[place]] = self._arrays[row]
        return torch.from_numpy(padded)

    def _scaled(self, x: Tensor) -> Tensor:
        """What the model reads ``(T, B, I)`` float32, in memory that every batch uses again."""
        shape = x.shape[1], x.shape[0], self.schema.width
        size = math.prod(shape)
        if size > len(self._exact) or self._exact.device != x.device:  # new memory costs more than the scaling
            self._exact = torch.empty(size, dtype=torch.float64, device=x.device)
            self._rounded = torch.empty(size, device=x.device)
        units = self.schema.scale_inputs(x, self._exact[:size].view(shape[1], shape[0], shape[2])).transpose(0, 1)
        return self._rounded[:size].view(shape).copy_(units)  # rounds and turns in one pass

    def _check_categories(self, x: Tensor, rows: np.ndarray) -> None:
        if (wrong := unknown_categories(self.schema.inputs, x)).any():
            place, step, number = torch.nonzero(wrong)[0].tolist()
            column = self.schema.inputs[number]
            raise ValueError(
                f"X must hold whole numbers from 0 to {len(column.categories) - 1} in {column.name}, positions in its "
                f"categories, step {step} of sequence {int(rows[place])} has {x[place, step, number].item()!r}"
            )

    def _symbols(self, x: Tensor, rows: np.ndarray) -> Tensor:
        most = (self.schema.vocabulary or 1) - 1
        wrong = torch.nonzero((x < 0) | (x > most) | (x != x.round()))
        if len(wrong):
            step, place = wrong[0].tolist()
            raise ValueError(
                f"X must hold whole numbers from 0 to {most}, step {step} of sequence {int(rows[place])} has "
                f"{x[step, place].item()!r}"
            )
        return x.long()

    def _together(self, x: np.ndarray) -> np.ndarray:
        """An array of sequences as ``(N, T, I)``."""
        width = len(self.schema.inputs)
        if x.ndim == 2 and width == 1:
            self.flat = True
            return x[..., None]
        if x.ndim != 3 or x.shape[2] != width:
            form = f"(N, T, {width}), N sequences of T steps with {_names(self.schema)}"
            also = " or (N, T)" if width == 1 else ""
            hint = "; one sequence is X[None]" if x.ndim == 2 and x.shape[1] == width else ""
            raise ValueError(f"X must be an array {form}{also}, got {x.shape}{hint}")
        return x

    def _one(self, x: Any, n: int) -> np.ndarray:
        """One array of a list as ``(T, I)``."""
        array, width = _array(x, f"sequence {n} of X"), len(self.schema.inputs)
        if array.ndim == 1 and width == 1:
            self.flat = True
            return array[:, None]
        if array.ndim != 2 or array.shape[1] != width:
            raise ValueError(
                f"sequence {n} of X must be (T, {width}), steps with {_names(self.schema)}, got {array.shape}"
            )
        return array


def _array(x: Any, name: str) -> np.ndarray:
    if isinstance(x, Tensor):
        x = x.detach().cpu().numpy()
    try:
        array = np.asarray(x)
    except ValueError:
        raise ValueError(f"{name} must be an array; sequences of different lengths go in a list of arrays") from None
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold numbers, got {array.dtype}")
    return array.astype(np.int64) if array.dtype.kind in "ub" else array


def _names(schema: DataSchema) -> str:
    return ", ".join(column.name for column in schema.inputs)


def _from_table(x: Any, schema: DataSchema, length: int | None) -> tuple[list[np.ndarray], np.ndarray]:
    """The sequences of a table, and the row of each step."""
    names = [str(name) for name in x.columns]
    needed = [schema.time if column.kind == "gap" else column.name for column in schema.inputs]
    missing = [name for name in needed if name not in names]
    if missing:
        raise ValueError(f"the table has no column {missing[0]!r}, which the model reads; it has {', '.join(names)}")

    def cells(name: str, read: Callable[[Any], Any]) -> Any:
        try:
            return read(x[name].to_numpy())
        except BadCell as error:
            raise ValueError(f"row {error.row} of column {name!r} {error.problem}") from None

    times = None
    if schema.time_unit is not None and schema.time in names:
        times, _ = cells(schema.time, lambda values: time_values(values, schema.time_unit))
    try:
        order, lengths = grouped(x[schema.sequence].to_numpy() if schema.sequence in names else None, len(x), times)
    except BadCell as error:
        raise ValueError(f"row {error.row} of column {schema.time!r} {error.problem}") from None
    values = np.zeros((len(order), len(schema.inputs)))
    for place, column in enumerate(schema.inputs):
        if column.kind != "gap":
            values[:, place] = cells(column.name, partial(column_values, column))[order]
        elif times is not None:
            values[:, place] = time_gaps(times[order], lengths)
    cuts = np.cumsum(cut_lengths(lengths, length))[:-1]
    return np.split(values, cuts) if len(values) else [], order
