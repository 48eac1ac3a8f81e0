"""The sequences of a user's file in blocks, as a schema describes them, in the layouts that training reads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evenflow.models.data_schema import DataSchema

from .guarded import FilePath, cannot_read
from .own_npz import read_npz_part
from .table_blocks import FileBlock, Labels, Progress, TableBlocks


def file_blocks(
    path: FilePath, schema: DataSchema, learned: bool, newest: bool = False, progress: Progress | None = None
) -> Iterator[FileBlock]:
    """The sequences of a file that the schema describes.

    The rows of a sequence must stand together, or the file must be small enough for one block.

    Args:
        path: a CSV file, or an npz or Parquet file if its name ends so.
        schema: the columns to read.
        learned: whether to read the targets too.
        newest: pass on the last `schema.length` steps of each sequence only, and one long series whole.
        progress: called with the bytes read so far and those of the file.
    """
    if str(path).lower().endswith(".npz"):
        return _npz_blocks(path, schema, learned)
    return TableBlocks(path, schema, learned, newest, progress).read()


def _npz_blocks(path: FilePath, schema: DataSchema, learned: bool) -> Iterator[FileBlock]:
    inputs, found = read_npz_part(path, schema.kind, schema.readout, learned)
    if inputs[0].shape[1] != len(schema.inputs):
        raise cannot_read(path, f"'x' has {inputs[0].shape[1]} inputs, and the model reads {len(schema.inputs)}")
    targets: list[np.ndarray] | None = None
    if learned and schema.kind != "next":
        if schema.kind == "classification":
            code = Labels(path, schema)
            targets = [
                np.array([code(str(value), f"row {row} of 'y'") for value in np.ravel(y)]).reshape(np.shape(y))
                for row, y in enumerate(found)
            ]
        else:
            targets = [np.asarray(y, np.float64) for y in found]
            if targets[0].shape[-1] != len(schema.targets):
                raise cannot_read(
                    path, f"'y' has {targets[0].shape[-1]} numbers, the model gives {len(schema.targets)}"
                )
    yield FileBlock([str(row) for row in range(len(inputs))], [0] * len(inputs), inputs, targets)
