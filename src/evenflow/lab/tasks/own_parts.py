"""Divide the sequences of a user's own file into training, validation and test parts, and scale them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from evenflow.lab.data import OwnSequences
from evenflow.models.data_schema import DataColumn, DataSchema, scaled_columns

from .data_set import split

HELD_OUT = 10  # one sequence in ten is for validation


class Parts(NamedTuple):
    """The sequences of a file, their description, and the scaled inputs and targets of every part."""

    own: OwnSequences
    schema: DataSchema
    inputs: dict[str, list[np.ndarray]]
    targets: dict[str, list[np.ndarray]]


def divide(own: OwnSequences, path: str, length: int, targets_named: Sequence[str], sequence: str) -> Parts:
    """Divide and scale the sequences of a file.

    Args:
        own: the sequences.
        path: the file, for error messages.
        length: steps of a piece, if the file is one long series.
        targets_named: names of the targets.
        sequence: name of the column of sequences.
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
    series = {"length": length} if len(own.inputs) == 1 else {}
    schema = _schema(own, parts["training"], targets_named, {"sequence": sequence, **series})
    scaled = {
        part: [schema.scale_inputs(torch.from_numpy(x)).float().numpy() for x in arrays]
        for part, (arrays, _) in parts.items()
    }
    if own.kind == "next":
        ahead = {part: [sequence[1:] for sequence in x] for part, x in scaled.items()}
        return Parts(own, schema, {part: [sequence[:-1] for sequence in x] for part, x in scaled.items()}, ahead)
    learned = {part: y for part, (_, y) in parts.items()}
    if own.kind == "regression":
        mean, deviation = schema.output_scale
        learned = {part: [((y - mean) / deviation).astype(np.float32) for y in rows] for part, rows in learned.items()}
    return Parts(own, schema, scaled, learned)


def _schema(
    own: OwnSequences, training: tuple[list[np.ndarray], Any], names: Sequence[str], more: dict[str, Any]
) -> DataSchema:
    """The description of the file; numbers are scaled by the training part."""
    inputs, targets = training
    columns: tuple[DataColumn, ...] = ()
    if own.kind == "classification":
        columns = (DataColumn(names[0], "category", categories=own.labels),)
    elif own.kind == "regression":
        columns = scaled_columns(names, np.concatenate([np.atleast_2d(rows) for rows in targets]))
    return DataSchema(own.kind, own.readout, scaled_columns(own.names, np.concatenate(inputs)), columns, **more)


def _pieces(length: int, series: np.ndarray, targets: Any) -> tuple[list[np.ndarray], Any]:
    """Cut one long series into pieces of `length` steps; a shorter last piece is kept if it has two steps."""
    cuts = range(0, len(series) - 1, length)
    inputs = [series[cut : cut + length] for cut in cuts]
    return inputs, None if targets is None else [targets[cut : cut + length] for cut in cuts]
