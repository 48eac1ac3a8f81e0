"""Read a user's own sequences from an npz file of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evenflow.models.data_column import DataColumn

from .guarded import FilePath, cannot_read, read_arrays
from .own_sequences import LIMIT, Labels, OwnSequences, check_choices, classes

ARRAYS = ("x", "y", "lengths")
PARTS = ("_valid", "_test")  # ends of the names of the arrays to validate and to test on


def read_npz(path: FilePath, kind: str | None = None, readout: str | None = None) -> OwnSequences:
    """Read sequences from an npz file with these arrays:

    - ``x``: inputs, ``(N, T, I)``, or ``(N, T)`` for one input.
    - ``y``: the targets. Whole numbers or text are classes: ``(N,)`` with one per sequence (readout "last") or
      ``(N, T)`` with one per step (readout "every"). Other numbers are for regression: ``(N,)`` or ``(N, O)`` per
      sequence, ``(N, T)`` or ``(N, T, O)`` per step; if O equals T, ``(N, T)`` means one number per step. Without this
      array the inputs of the next step are the targets.
    - ``lengths``: the length of each sequence, ``(N,)``; steps past it are ignored. Default: all have T steps.
    - ``x_valid``, ``y_valid``, ``lengths_valid``: the same for sequences to validate on. Default: a part of ``x``.
    - ``x_test``, ``y_test``, ``lengths_test``: the same for sequences to test on.

    Args:
        path: a file written by ``numpy.savez`` or ``numpy.savez_compressed``. Python objects in it are never read.
        kind: "classification", "regression" or "next"; with "next", targets are ignored. Default: what the targets look
            like.
        readout: "last" or "every". Default: what the targets look like.

    Raises:
        ValueError: the file is missing or damaged, or an array is invalid; the message names the row, counted from 0.
    """
    names = [f"{name}{end}" for end in PARTS for name in ARRAYS]
    return sequences_of(path, read_arrays(path, ["x"], LIMIT, ["y", "lengths", *names]), kind, readout)


def sequences_of(
    path: FilePath, arrays: dict[str, np.ndarray], kind: str | None = None, readout: str | None = None
) -> OwnSequences:
    """The sequences of arrays with the names of `read_npz`; `path` says in messages where they are from."""
    check_choices(kind, readout)
    if kind == "next":
        arrays = {name: array for name, array in arrays.items() if name.partition("_")[0] != "y"}
    elif kind is not None and "y" not in arrays:
        raise cannot_read(path, f"it has no array 'y', which {kind} needs")
    for end in PARTS:
        for name in (f"y{end}", f"lengths{end}"):
            if name in arrays and f"x{end}" not in arrays:
                raise cannot_read(path, f"it has {name!r} and no 'x{end}'")
        if f"x{end}" in arrays and ("y" in arrays) != (f"y{end}" in arrays):
            have, lack = ("y", f"y{end}") if "y" in arrays else (f"y{end}", "y")
            raise cannot_read(path, f"it has {have!r} and no {lack!r}")
    train = _part(path, arrays, "", kind, readout)
    held_out = {end: _part(path, arrays, end, train.kind, train.readout) for end in PARTS if f"x{end}" in arrays}
    for end, part in {"": train, **held_out}.items():
        short = [row for row, x in enumerate(part.inputs) if part.kind == "next" and len(x) < 2]
        if short:
            raise cannot_read(path, f"row {short[0]} of 'x{end}' has one step, and predicting the next needs two")
    for end, part in held_out.items():
        if (part.inputs[0].shape[1], part.width) != (train.inputs[0].shape[1], train.width):
            raise cannot_read(path, f"'x{end}' and 'y{end}' differ from 'x' and 'y' in more than their rows and steps")
    labels: Labels = ()
    outputs = train.width or train.inputs[0].shape[1]
    if train.kind == "classification":
        values = [value for part in (train, *held_out.values()) for value in part.distinct()]
        labels, positions = classes(path, values)
        outputs = len(labels)
        train, held_out = train.coded(positions), {end: part.coded(positions) for end, part in held_out.items()}
    columns = tuple(DataColumn(f"x{column}") for column in range(train.inputs[0].shape[1]))

    def own(part: NpzPart, end: str, **more: Any) -> OwnSequences:
        ids = tuple(f"row {row} of 'x{end}'" for row in range(len(part.inputs)))
        return OwnSequences(
            part.inputs, part.targets, part.kind, part.readout, columns, labels, outputs, ids=ids, **more
        )

    valid, test = (own(held_out[end], end) if end in held_out else None for end in PARTS)
    return own(train, "", validation=valid, test=test)


class NpzPart(NamedTuple):
    """Some rows of ``x`` and ``y``, or of those to validate or to test on, with classes as the file spells them."""

    inputs: list[np.ndarray]
    targets: np.ndarray | list[np.ndarray] | None
    kind: str
    readout: str
    width: int  # numbers in a target; 0 if there are none

    def distinct(self) -> list[object]:
        assert self.targets is not None
        return np.unique(np.concatenate([np.atleast_1d(target) for target in self.targets])).tolist()

    def coded(self, positions: dict[object, int]) -> NpzPart:
        def code(values: np.ndarray) -> np.ndarray:
            distinct, inverse = np.unique(values, return_inverse=True)
            return np.array([positions[value] for value in distinct.tolist()], np.int64)[inverse.reshape(values.shape)]

        if isinstance(self.targets, np.ndarray):
            return self._replace(targets=code(self.targets))
        return self._replace(targets=[code(values) for values in self.targets or []])


def npz_part(path: FilePath, arrays: dict[str, np.ndarray], kind: str, readout: str, first: int) -> NpzPart:
    """Some rows of the arrays of `read_npz`, of which `first` is the number of the first one. ``y`` may be missing."""
    return _part(path, arrays, "", kind, readout, first)


def _part(
    path: FilePath, arrays: dict[str, np.ndarray], end: str, kind: str | None, readout: str | None, first: int = 0
) -> NpzPart:
    x = arrays[f"x{end}"]
    if x.ndim not in (2, 3) or not x.size or x.dtype.kind not in "fiub":
        raise cannot_read(path, f"'x{end}' must be numbers (N, T) or (N, T, I), got {x.dtype} {x.shape}")
    x = x[..., None] if x.ndim == 2 else x
    lengths = _lengths(path, arrays, end, x, first)
    inputs = _cut(path, f"x{end}", _float32(x), lengths, first)
    y = arrays.get(f"y{end}")
    if y is None:
        return NpzPart(inputs, None, "next", "every", 0)
    kind = kind or ("regression" if y.dtype.kind == "f" else "classification")
    if kind == "classification":
        y = _whole(path, f"y{end}", y)
    elif y.dtype.kind not in "fiub":
        raise cannot_read(path, f"'y{end}' must be numbers for regression, got {y.dtype}")
    n, steps = x.shape[:2]
    readout = readout or ("every" if y.ndim == 3 or y.shape == (n, steps) else "last")
    widest = (2 if readout == "every" else 1) + (kind == "regression")
    lead = (n, steps) if readout == "every" else (n,)
    if y.shape[: len(lead)] != lead or not len(lead) <= y.ndim <= widest or not y.size:
        allowed = " or ".join(str((*lead, *rest)).replace("'", "") for rest in ((), ("O",))[: widest - len(lead) + 1])
        raise cannot_read(path, f"'y{end}' must have shape {allowed} for {kind}, readout {readout}, got {y.shape}")
    if kind == "regression":
        y = _float32(y if y.ndim == widest else y[..., None])
    if readout == "every":
        return NpzPart(
            inputs, _cut(path, f"y{end}", y, lengths, first), kind, readout, y.shape[2] if y.ndim == 3 else 1
        )
    for row in () if kind == "classification" else np.flatnonzero(~np.isfinite(y).all(1))[:1]:
        raise cannot_read(path, f"row {first + row} of 'y{end}' holds something else than finite float32 numbers")
    return NpzPart(inputs, y, kind, readout, y.shape[1] if y.ndim == 2 else 1)


def _lengths(path: FilePath, arrays: dict[str, np.ndarray], end: str, x: np.ndarray, first: int) -> np.ndarray:
    n, steps = x.shape[:2]
    lengths = arrays.get(f"lengths{end}")
    if lengths is None:
        return np.full(n, steps)
    if lengths.shape != (n,) or lengths.dtype.kind not in "iu":
        raise cannot_read(path, f"'lengths{end}' must be {n} whole numbers, got {lengths.dtype} {lengths.shape}")
    for row in np.flatnonzero((lengths < 1) | (lengths > steps))[:1]:
        raise cannot_read(path, f"row {first + row} of 'lengths{end}' is {lengths[row]}, allowed are 1 to {steps}")
    return lengths.astype(np.int64)


def _cut(path: FilePath, name: str, array: np.ndarray, lengths: np.ndarray, first: int) -> list[np.ndarray]:
    """The steps of each sequence up to its length; floating-point numbers must be finite."""
    cut = [row[:length] for row, length in zip(array, lengths.tolist(), strict=True)]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        for row, values in enumerate(cut):
            for step in np.flatnonzero(~np.isfinite(values).all(1))[:1]:
                place = f"row {first + row}, step {step}, of {name!r}"
                raise cannot_read(path, f"{place} holds something else than finite float32 numbers")
    return cut


def _float32(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)


def _whole(path: FilePath, name: str, y: np.ndarray) -> np.ndarray:
    """Convert classes to whole numbers or text."""
    if y.dtype.kind == "f" and bool((np.abs(y) < 2**53).all()) and bool((y % 1 == 0).all()):
        y = y.astype(np.int64)
    if y.dtype.kind == "S":
        try:
            y = np.char.decode(y, "utf-8")
        except UnicodeDecodeError:
            raise cannot_read(path, f"{name!r} holds text that is not UTF-8") from None
    if y.dtype.kind not in "iubU":
        raise cannot_read(path, f"{name!r} must be whole numbers or text for classification, got {y.dtype}")
    return y.astype(np.int64) if y.dtype.kind == "b" else y
