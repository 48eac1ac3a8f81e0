"""Divide the sequences of a user's own file into training, validation and test parts, cut and scale them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from evenflow.lab.data import OwnSequences
from evenflow.lab.data.file_blocks import file_blocks
from evenflow.models.data_column import DataColumn, scaled_columns
from evenflow.models.data_schema import DataSchema

from .own_division import Division
from .own_places import FilePlace, place_names

SERIES_LENGTH = 100  # steps of a window, where the file is one long series


class Part(NamedTuple):
    """Sequences in the units of the file, their targets, and where they are from."""

    inputs: list[np.ndarray]
    targets: Any  # None for kind "next"
    places: list[FilePlace]

    def rows(self, rows: Sequence[int]) -> Part:
        """The sequences with these numbers."""
        targets = None if self.targets is None else [self.targets[n] for n in rows]
        return Part([self.inputs[n] for n in rows], targets, [self.places[n] for n in rows])


class Outlook(NamedTuple):
    """What a model of kind "next" predicts: how many steps at once, and which inputs it is told ahead instead."""

    horizon: int = 1
    known: tuple[str, ...] = ()


NEXT_STEP = Outlook()


class Parts(NamedTuple):
    """The sequences of a file, their description, and the scaled inputs, targets and places of every part."""

    own: OwnSequences
    schema: DataSchema
    inputs: dict[str, list[np.ndarray]]
    targets: dict[str, list[np.ndarray]]
    places: dict[str, list[str]]


def divide(
    own: OwnSequences,
    path: str,
    division: Division,
    length: int | None,
    stride: int | None,
    targets_named: Sequence[str],
    places: Mapping[str, str],
    validation: str | None = None,
    outlook: Outlook = NEXT_STEP,
    named: bool = True,
) -> Parts:
    """Divide, cut and scale the sequences of a file.

    Sequences are divided before they are cut, so that no step is in a window of training and in one of validation.

    Args:
        own: the sequences.
        path: the file, for error messages.
        division: which sequences, or which last steps of one long series, are for validation.
        length: steps of a window. Default: 100 for one long series; otherwise sequences stay whole.
        stride: steps from one training window to the next. Default: `length`.
        targets_named: names of the targets.
        places: names of the columns of sequences and of times.
        validation: a file of its own for validation.
        outlook: of kind "next".
        named: whether the sequences are from a file; otherwise `path` is a word for messages.
    """
    if len(own.inputs) == 1 and length is None:
        length = SERIES_LENGTH
    own = _told_ahead(own, path, outlook, length)
    parts: dict[str, Part]
    if (validation is not None or own.validation is not None) and division != Division():
        raise ValueError(f"share, split and split_seed go with data that are to be divided, {path!r} is already")
    if validation is not None:
        parts = {"training": _part_of(own)}
    elif own.validation is not None:
        parts = {"training": _part_of(own), "validation": _part_of(own.validation)}
    elif len(own.inputs) == 1:
        parts = _divided_series(own, path, division, length or SERIES_LENGTH)
    else:
        classes = own.targets if own.kind == "classification" and own.readout == "last" else None
        rows = division.rows(len(own.inputs), classes, own.groups)  # type: ignore[arg-type]
        parts = {
            part: _part_of(own).rows(chosen.tolist())
            for part, chosen in zip(("training", "validation"), rows, strict=True)
        }
    if own.test is not None:
        parts["test"] = _part_of(own.test)
    if length is not None:
        steps = {"training": length if stride is None else stride}
        parts = {part: _windows(each, length, steps.get(part, length), own.readout) for part, each in parts.items()}
    clock = {"time_unit": own.clock.unit, "time_step": own.clock.step} if own.clock else {}
    more = {**places, **clock, "length": length, "horizon": outlook.horizon}
    schema = _schema(own, parts["training"], targets_named, more)
    if validation is not None:
        parts["validation"] = _file_part(validation, schema)
    files = {part: validation if part == "validation" and validation is not None else path for part in parts}
    names = {
        part: place_names(each.places, each.inputs, length is not None, files[part] if named else "")
        for part, each in parts.items()
    }
    scaled = {
        part: [schema.scale_inputs(torch.from_numpy(x)).float().numpy() for x in each.inputs]
        for part, each in parts.items()
    }
    if own.kind == "next":
        ahead = {part: [_next_steps(schema, x) for x in each.inputs] for part, each in parts.items()}
        scaled = {part: [sequence[:-1] for sequence in x] for part, x in scaled.items()}
        return Parts(own, schema, scaled, ahead, names)
    learned = {part: each.targets for part, each in parts.items()}
    if own.kind == "regression":
        mean, deviation = schema.output_scale
        learned = {part: [((y - mean) / deviation).astype(np.float32) for y in rows] for part, rows in learned.items()}
    return Parts(own, schema, scaled, learned, names)


def _told_ahead(own: OwnSequences, path: str, outlook: Outlook, length: int | None) -> OwnSequences:
    """The sequences with the columns marked that are known ahead."""
    if outlook == NEXT_STEP:
        return own
    if own.kind != "next":
        raise ValueError(f"horizon and known go with kind next, and the targets of {path!r} are for {own.kind}")
    longest = max(map(len, own.inputs)) if length is None else length
    if outlook.horizon >= longest:
        raise ValueError(f"horizon must be below {longest}, the steps of a sequence, got {outlook.horizon}")
    readable = [column.name for column in own.columns if column.kind != "gap"]
    for name in outlook.known:
        if name not in readable:
            raise ValueError(f"known must name inputs of {path!r}, {', '.join(readable)}, got {name!r}")
    columns = tuple(dataclasses.replace(column, known=column.name in outlook.known) for column in own.columns)
    if all(column.known or column.kind != "number" for column in columns):
        raise ValueError(f"known must leave a column of numbers to predict, got {', '.join(outlook.known)}")
    return dataclasses.replace(own, columns=columns)


def _part_of(own: OwnSequences) -> Part:
    places = [FilePlace(name) for name in own.ids] or [FilePlace("")]
    return Part(own.inputs, None if own.targets is None else list(own.targets), places)


def _divided_series(own: OwnSequences, path: str, division: Division, length: int) -> dict[str, Part]:
    """The first and the last steps of one long series; the last ones are a whole number of windows, but for the end."""
    if own.readout == "last":
        raise ValueError(
            f"{path!r} holds one sequence with one target for all of its steps, and learning needs two "
            "sequences, or a target at every step (option read=every)"
        )
    if division.how not in (None, "time"):
        raise ValueError(f"split of one long series must be time, the last steps are held out, got {division.how!r}")
    x, y = own.inputs[0], None if own.targets is None else own.targets[0]
    windows = len(_starts(len(x), length, length))
    first = (windows - division.count(windows)) * length
    if first < 2:
        raise ValueError(
            f"{path!r} holds one sequence of {len(x)} steps, too short for pieces of length "
            f"{length}: make length smaller"
        )
    name = own.ids[0] if own.ids else ""
    return {
        "training": Part([x[:first]], None if y is None else [y[:first]], [FilePlace(name)]),
        "validation": Part([x[first:]], None if y is None else [y[first:]], [FilePlace(name, first)]),
    }


def _windows(part: Part, length: int, stride: int, readout: str) -> Part:
    """Windows of all sequences; of targets after the last step each window has that of its sequence."""
    pairs = [(n, first) for n, x in enumerate(part.inputs) for first in _starts(len(x), length, stride)]
    cut = [part.inputs[n][first : first + length] for n, first in pairs]
    places = [part.places[n]._replace(start=part.places[n].start + first) for n, first in pairs]
    if part.targets is None:
        return Part(cut, None, places)
    y = part.targets
    return Part(cut, [y[n] if readout == "last" else y[n][first : first + length] for n, first in pairs], places)


def _starts(steps: int, length: int, stride: int) -> range:
    """The first steps of the windows of a sequence; the last one may be shorter and has at least two steps."""
    count = 1 + max(0, -(-(steps - length) // stride))
    if count > 1 and steps - (count - 1) * stride < 2:
        count -= 1
    return range(0, count * stride, stride)


def _schema(own: OwnSequences, training: Part, names: Sequence[str], more: dict[str, Any]) -> DataSchema:
    """The description of the file; numbers are scaled by the training part."""
    inputs, targets, _ = training
    columns: tuple[DataColumn, ...] = ()
    if own.kind == "classification":
        columns = (DataColumn(names[0], "category", categories=own.labels),)
    elif own.kind == "regression":
        numbers = [DataColumn(name) for name in names]
        columns = scaled_columns(numbers, np.concatenate([np.atleast_2d(rows) for rows in targets]))
    return DataSchema(own.kind, own.readout, scaled_columns(own.columns, np.concatenate(inputs)), columns, **more)


def _next_steps(schema: DataSchema, x: np.ndarray) -> np.ndarray:
    """The scaled targets of a sequence: the predicted columns of the next steps, nan where one is missing."""
    mean, deviation = schema.output_scale
    places = [schema.inputs.index(column) for column in schema.predicted]
    return ((steps_ahead(x[:, places], schema.horizon) - mean) / deviation).astype(np.float32)


def steps_ahead(y: np.ndarray, horizon: int) -> np.ndarray:
    """The next steps of each step but the last, side by side: ``(T - 1, horizon * O)`` of ``(T, O)``; nan beyond it."""
    longer = np.concatenate([y, np.full((horizon, y.shape[1]), np.nan)])
    return np.concatenate([longer[step : step + len(y) - 1] for step in range(1, horizon + 1)], 1)


def _file_part(path: str, schema: DataSchema) -> Part:
    """The sequences of a file of its own, read as for prediction."""
    blocks = list(file_blocks(path, schema, learned=True))
    inputs = [x for block in blocks for x in block.inputs]
    form = "row {} of 'x'" if path.lower().endswith(".npz") else "{}"
    places = [
        FilePlace(form.format(name), n) for each in blocks for name, n in zip(each.names, each.starts, strict=True)
    ]
    if schema.kind == "next":
        longer = [n for n, x in enumerate(inputs) if len(x) > 1]
        if not longer:
            raise ValueError(f"{path!r} has no sequence of two steps, and predicting the next needs two")
        return Part(inputs, None, places).rows(longer)
    return Part(inputs, [y for block in blocks for y in block.targets or []], places)
