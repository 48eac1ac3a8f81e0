"""Read a user's own sequences from an npz file of arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .guarded import FilePath, cannot_read, read_arrays
from .own_sequences import LIMIT, Labels, OwnSequences, check_choices, classes

ARRAYS = ("x", "y", "lengths")


def read_npz(path: FilePath, kind: str | None = None, readout: str | None = None) -> OwnSequences:
    """Read sequences from an npz file with these arrays:

    - ``x``: inputs, ``(N, T, I)``, or ``(N, T)`` for one input.
    - ``y``: the targets. Whole numbers or text are classes: ``(N,)`` with one per sequence (readout "last") or
      ``(N, T)`` with one per step (readout "every"). Other numbers are for regression: ``(N,)`` or ``(N, O)`` per
      sequence, ``(N, T)`` or ``(N, T, O)`` per step; if O equals T, ``(N, T)`` means one number per step. Without this
      array the inputs of the next step are the targets.
    - ``lengths``: the length of each sequence, ``(N,)``; steps past it are ignored. Default: all have T steps.
    - ``x_test``, ``y_test``, ``lengths_test``: the same for sequences to test on.

    Args:
        path: a file written by ``numpy.savez`` or ``numpy.savez_compressed``. Python objects in it are never read.
        kind: "classification", "regression" or "next"; with "next", targets are ignored. Default: what the targets look
            like.
        readout: "last" or "every". Default: what the targets look like.

    Raises:
        ValueError: the file is missing or damaged, or an array is invalid; the message names the row, counted from 0.
    """
    check_choices(kind, readout)
    arrays = read_arrays(path, ["x"], LIMIT, ["y", "lengths", *(f"{name}_test" for name in ARRAYS)])
    if kind == "next":
        arrays = {name: array for name, array in arrays.items() if name not in ("y", "y_test")}
    elif kind is not None and "y" not in arrays:
        raise cannot_read(path, f"it has no array 'y', which {kind} needs")
    for name in ("y_test", "lengths_test"):
        if name in arrays and "x_test" not in arrays:
            raise cannot_read(path, f"it has {name!r} and no 'x_test'")
    if "x_test" in arrays and ("y" in arrays) != ("y_test" in arrays):
        have, lack = ("y", "y_test") if "y" in arrays else ("y_test", "y")
        raise cannot_read(path, f"it has {have!r} and no {lack!r}")
    train = _part(path, arrays, "", kind, readout)
    test = _part(path, arrays, "_test", train.kind, train.readout) if "x_test" in arrays else None
    if test and (test.inputs[0].shape[1], test.width) != (train.inputs[0].shape[1], train.width):
        raise cannot_read(path, "'x_test' and 'y_test' differ from 'x' and 'y' in more than their rows and steps")
    labels: Labels = ()
    outputs = train.width or train.inputs[0].shape[1]
    if train.kind == "classification":
        labels, positions = classes(path, [value for part in (train, test) if part for value in part.distinct()])
        outputs = len(labels)
        train, test = train.coded(positions), test.coded(positions) if test else None
    names = tuple(f"x{column}" for column in range(train.inputs[0].shape[1]))
    tested = OwnSequences(test.inputs, test.targets, test.kind, test.readout, names, labels, outputs) if test else None
    return OwnSequences(train.inputs, train.targets, train.kind, train.readout, names, labels, outputs, tested)


def read_npz_part(path: FilePath, kind: str, readout: str, learned: bool) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The sequences of ``x`` and, if `learned`, their targets ``y``; classes as the file spells them."""
    arrays = read_arrays(path, ["x", "y"] if learned and kind != "next" else ["x"], LIMIT, ["lengths"])
    part = _part(path, arrays, "", kind, readout)
    return part.inputs, list(part.targets) if part.targets is not None else []


class _NpzPart(NamedTuple):
    """The training or the test part of the file, with classes as the file spells them."""

    inputs: list[np.ndarray]
    targets: np.ndarray | list[np.ndarray] | None
    kind: str
    readout: str
    width: int  # numbers in a target; 0 if there are none

    def distinct(self) -> list[object]:
        assert self.targets is not None
        return np.unique(np.concatenate([np.atleast_1d(target) for target in self.targets])).tolist()

    def coded(self, positions: dict[object, int]) -> _NpzPart:
        def code(values: np.ndarray) -> np.ndarray:
            distinct, inverse = np.unique(values, return_inverse=True)
            return np.array([positions[value] for value in distinct.tolist()], np.int64)[inverse.reshape(values.shape)]

        if isinstance(self.targets, np.ndarray):
            return self._replace(targets=code(self.targets))
        return self._replace(targets=[code(values) for values in self.targets or []])


def _part(path: FilePath, arrays: dict[str, np.ndarray], end: str, kind: str | None, readout: str | None) -> _NpzPart:
    x = arrays[f"x{end}"]
    if x.ndim not in (2, 3) or not x.size or x.dtype.kind not in "fiub":
        raise cannot_read(path, f"'x{end}' must be numbers (N, T) or (N, T, I), got {x.dtype} {x.shape}")
    x = x[..., None] if x.ndim == 2 else x
    lengths = _lengths(path, arrays, end, x)
    inputs = _cut(path, f"x{end}", _float32(x), lengths)
    y = arrays.get(f"y{end}")
    if y is None:
        if lengths.min() < 2:
            row = int(lengths.argmin())
            raise cannot_read(path, f"row {row} of 'x{end}' has one step, and predicting the next needs two")
        return _NpzPart(inputs, None, "next", "every", 0)
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
        return _NpzPart(inputs, _cut(path, f"y{end}", y, lengths), kind, readout, y.shape[2] if y.ndim == 3 else 1)
    for row in () if kind == "classification" else np.flatnonzero(~np.isfinite(y).all(1))[:1]:
        raise cannot_read(path, f"row {row} of 'y{end}' holds something else than finite float32 numbers")
    return _NpzPart(inputs, y, kind, readout, y.shape[1] if y.ndim == 2 else 1)


def _lengths(path: FilePath, arrays: dict[str, np.ndarray], end: str, x: np.ndarray) -> np.ndarray:
    n, steps = x.shape[:2]
    lengths = arrays.get(f"lengths{end}")
    if lengths is None:
        return np.full(n, steps)
    if lengths.shape != (n,) or lengths.dtype.kind not in "iu":
        raise cannot_read(path, f"'lengths{end}' must be {n} whole numbers, got {lengths.dtype} {lengths.shape}")
    for row in np.flatnonzero((lengths < 1) | (lengths > steps))[:1]:
        raise cannot_read(path, f"row {row} of 'lengths{end}' is {lengths[row]}, allowed are 1 to {steps}")
    return lengths.astype(np.int64)


def _cut(path: FilePath, name: str, array: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """The steps of each sequence up to its length; floating-point numbers must be finite."""
    cut = [row[:length] for row, length in zip(array, lengths.tolist(), strict=True)]
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        for row, values in enumerate(cut):
            for step in np.flatnonzero(~np.isfinite(values).all(1))[:1]:
                place = f"row {row}, step {step}, of {name!r}"
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
