"""The sequences of a user's file in blocks, as a schema describes them, in the layouts that training reads."""

from __future__ import annotations

from collections.abc import Iterator

from evenflow.models.data_schema import DataSchema

from .guarded import FilePath
from .npz_blocks import npz_blocks
from .table_blocks import FileBlock, Progress, TableBlocks


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
        return npz_blocks(path, schema, learned, progress)
    return TableBlocks(path, schema, learned, newest, progress).read()
