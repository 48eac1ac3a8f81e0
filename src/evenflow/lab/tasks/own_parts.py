"""A user's own sequences divided into training, validation and test, and scaled by the first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evenflow.lab.data import OwnSequences

from .data_set import split

HELD_OUT = 10  # one sequence in ten


class Parts(NamedTuple):
    """What was read, and the inputs and targets of every part, scaled."""

    own: OwnSequences
    inputs: dict[str, list[np.ndarray]]
    targets: dict[str, list[np.ndarray]]


def divide(own: OwnSequences, path: str, length: int) -> Parts:
    """The sequences of a file in parts, scaled.

    Args:
        path: the file, for messages.
        length: steps of a piece, where there is one long series.
    """
    inputs, targets = own.inputs, own.targets
    if len(inputs) == 1:
        if own.readout == "last":
            raise ValueError(
                f"{path!r} holds one sequence with one target for all of its steps, and learning needs two "
                "sequences, or a target at every step (option read=every)"
            )
        inputs, targets = _pieces(length, inputs[0], None if targets is None else targets[0])
        last = max(1, len(inputs) // HELD_OUT)
        rows = np.arange(len(inputs) - last), np.arange(len(inputs) - last, len(inputs))
    else:
        rows = split(len(inputs), max(1, len(inputs) // HELD_OUT))
    if not len(rows[0]):
        raise ValueError(
            f"{path!r} holds one sequence of {len(own.inputs[0])} steps, too short for pieces of length "
            f"{length}: make length smaller"
        )
    scale = _Standardise([inputs[row] for row in rows[0]])
    parts: dict[str, tuple[list[np.ndarray], Any]] = {
        part: ([inputs[row] for row in chosen], None if targets is None else [targets[row] for row in chosen])
        for part, chosen in zip(("training", "validation"), rows, strict=True)
    }
    if own.test is not None:
        parts["test"] = own.test.inputs, None if own.test.targets is None else list(own.test.targets)
    scaled = {part: [scale(sequence) for sequence in x] for part, (x, _) in parts.items()}
    if own.kind == "next":
        ahead = {part: [sequence[1:] for sequence in x] for part, x in scaled.items()}
        return Parts(own, {part: [sequence[:-1] for sequence in x] for part, x in scaled.items()}, ahead)
    learned = {part: y for part, (_, y) in parts.items()}
    if own.kind == "regression":
        by = _Standardise([np.atleast_2d(y) for y in learned["training"]])
        learned = {part: [by(y) for y in ys] for part, ys in learned.items()}
    return Parts(own, scaled, learned)


def _pieces(length: int, series: np.ndarray, targets: Any) -> tuple[list[np.ndarray], Any]:
    """One long series in pieces of `length` steps; those left over at the end are a shorter piece if they are two."""
    cuts = range(0, len(series) - 1, length)
    inputs = [series[cut : cut + length] for cut in cuts]
    return inputs, None if targets is None else [targets[cut : cut + length] for cut in cuts]


class _Standardise:
    """To mean zero and deviation one over the given rows; what never changes is only shifted."""

    def __init__(self, sequences: list[np.ndarray]) -> None:
        rows = np.concatenate(sequences).astype(np.float64)
        deviation = rows.std(0)
        self.mean, self.deviation = rows.mean(0), np.where(deviation > 0, deviation, 1.0)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return ((values - self.mean) / self.deviation).astype(np.float32)
