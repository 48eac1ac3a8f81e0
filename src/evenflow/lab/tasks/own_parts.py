"""Divide the sequences of a user's own file into training, validation and test parts, and scale them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from evenflow.lab.data import OwnSequences

from .data_set import split

HELD_OUT = 10  # one sequence in ten is for validation


class Parts(NamedTuple):
    """The sequences of a file, and the scaled inputs and targets of every part."""

    own: OwnSequences
    inputs: dict[str, list[np.ndarray]]
    targets: dict[str, list[np.ndarray]]


def divide(own: OwnSequences, path: str, length: int) -> Parts:
    """Divide and scale the sequences of a file.

    Args:
        own: the sequences.
        path: the file, for error messages.
        length: steps of a piece, if the file is one long series.
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
    parts: dict[str, tuple[list[np.ndarray], Any]] = {
        part: ([inputs[row] for row in chosen], None if targets is None else [targets[row] for row in chosen])
        for part, chosen in zip(("training", "validation"), rows, strict=True)
    }
    if own.test is not None:
        parts["test"] = own.test.inputs, None if own.test.targets is None else list(own.test.targets)
    scaled = _standardised({part: x for part, (x, _) in parts.items()})
    if own.kind == "next":
        ahead = {part: [sequence[1:] for sequence in x] for part, x in scaled.items()}
        return Parts(own, {part: [sequence[:-1] for sequence in x] for part, x in scaled.items()}, ahead)
    learned = {part: y for part, (_, y) in parts.items()}
    return Parts(own, scaled, _standardised(learned) if own.kind == "regression" else learned)


def _pieces(length: int, series: np.ndarray, targets: Any) -> tuple[list[np.ndarray], Any]:
    """Cut one long series into pieces of `length` steps; a shorter last piece is kept if it has two steps."""
    cuts = range(0, len(series) - 1, length)
    inputs = [series[cut : cut + length] for cut in cuts]
    return inputs, None if targets is None else [targets[cut : cut + length] for cut in cuts]


def _standardised(parts: dict[str, list[np.ndarray]]) -> dict[str, list[np.ndarray]]:
    """Scale each column to mean zero and deviation one over the training part; a constant column is only shifted."""
    rows = np.concatenate([np.atleast_2d(sequence) for sequence in parts["training"]]).astype(np.float64)
    mean, deviation = rows.mean(0), rows.std(0)
    deviation[deviation == 0] = 1.0
    return {part: [((x - mean) / deviation).astype(np.float32) for x in arrays] for part, arrays in parts.items()}
