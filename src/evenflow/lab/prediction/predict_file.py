"""Write the predictions for a file as CSV."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from evenflow.lab.data.file_blocks import file_blocks
from evenflow.lab.data.table_blocks import FileBlock, Progress
from evenflow.models import DataSchema, Predictor

from .known_file import KnownFile

Cells = list[Any]


def predict_file(
    predictor: Predictor,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    horizon: int | None = None,
    known: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> int:
    """Predict for every sequence of a file and write a CSV file, which is complete or not there.

    Columns of `out`: ``sequence``, unless the file is one long series; ``step``, counted from 0, which the answer is
    for, or with which the window begins, where there is an answer for each step or window; ``ahead``, counted from 1,
    for forecasts; then ``prediction`` and ``probability_LABEL`` of a classification, or the predicted columns.

    Args:
        predictor: what `evenflow.load` returns.
        source: a CSV or npz file in the layout of the training data; targets are not needed.
        out: the file to write; an earlier file of this name is replaced.
        horizon: forecast this many steps after the end of each sequence, for kind "next".
        known: for a forecast, a file of the steps to come, in the layout of `source`, with the inputs that are known
            ahead. It is held in memory.
        progress: called with the bytes read so far and those of the file.

    Returns:
        The number of rows written.
    """
    schema, target = predictor.schema, Path(os.path.realpath(out))  # a link stays a link
    if target.exists() and os.path.exists(source) and os.path.samefile(source, target):
        raise ValueError(f"out must be another file than the data, got {str(out)!r} for both")
    if not target.parent.is_dir() or (target.exists() and not target.is_file()):
        raise ValueError(f"out must be a file in a folder that exists, got {str(out)!r}")
    if horizon is not None and schema.kind != "next":
        raise ValueError(f"horizon needs a model that predicts the next step, this one is for {schema.kind}")
    if known is not None and horizon is None:
        raise ValueError(f"known goes with a horizon, got {str(known)!r} without it")
    coming = None if known is None else KnownFile(known, schema)
    rows = 0
    with _replacing(target) as file:
        writer = csv.writer(file, lineterminator="\n")
        for block in file_blocks(source, schema, learned=False, newest=horizon is not None, progress=progress):
            named = bool(block.names[0])
            if not rows:
                step = ["ahead"] if horizon is not None else ["step"] if _stepped(schema) else []
                writer.writerow([*([schema.sequence] if named else []), *step, *_columns(schema)])
            for cells in _rows(predictor, block, horizon, coming):
                writer.writerow(cells if named else cells[1:])
                rows += 1
    return rows


def _stepped(schema: DataSchema) -> bool:
    """Whether a sequence has several answers: one for each step, or for each window."""
    return schema.readout == "every" or schema.length is not None


def _columns(schema: DataSchema) -> list[str]:
    if schema.kind == "classification":
        return ["prediction", *(f"probability_{label}" for label in schema.labels)]
    return [column.name for column in schema.predicted]


def _rows(predictor: Predictor, block: FileBlock, horizon: int | None, coming: KnownFile | None) -> Iterator[Cells]:
    schema = predictor.schema
    if horizon is not None:
        known = None if coming is None else coming.of(block.names, horizon)
        for name, steps in zip(block.names, predictor.forecast(block.inputs, horizon, known), strict=True):
            for ahead, values in enumerate(steps.reshape(horizon, -1).tolist(), 1):
                yield [name, ahead, *values]
        return
    if schema.kind == "classification":
        likely = predictor.predict_proba(block.inputs)
        answers = [[[schema.labels[int(np.argmax(p))], *_short(p)] for p in np.atleast_2d(each)] for each in likely]
    else:
        answers = [np.reshape(each, (-1, len(schema.predicted))).tolist() for each in predictor.predict(block.inputs)]
    for name, start, cells in zip(block.names, block.starts, answers, strict=True):
        # A prediction of the next step stands beside the number of that step.
        told = len(cells) - bool(schema.known)  # nothing is known ahead of the step after the last one
        for step, row in enumerate(cells[:told], start + (schema.kind == "next")):
            yield [name, step, *row] if _stepped(schema) else [name, *row]


def _short(probabilities: np.ndarray) -> list[float]:
    """Probabilities with the digits that single precision has."""
    return [float(f"{p:.7g}") for p in probabilities.tolist()]


@contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """A new file that takes the place of `path` when the block ends, and is removed if the block fails."""
    temporary = path.with_name(f".writing-{path.name}")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        raise ValueError(f"file {str(path)!r} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
