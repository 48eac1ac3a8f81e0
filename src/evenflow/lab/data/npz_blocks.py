"""The sequences of an npz file in blocks, so that a file may be larger than the memory."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator

import numpy as np

from evenflow.models.data_schema import DataSchema

from .guarded import LONGEST_HEADER, FilePath, MemberStream, array_header, cannot_read, npz_archive, npz_members, opened
from .own_npz import npz_part
from .own_sequences import LIMIT
from .table_blocks import FileBlock, Labels, Progress

BLOCK_BYTES = 1 << 26  # of the arrays of a block


def npz_blocks(path: FilePath, schema: DataSchema, learned: bool, progress: Progress | None) -> Iterator[FileBlock]:
    """The sequences of ``x`` and, if `learned`, their targets ``y``; the arguments are those of `file_blocks`."""
    learned = learned and schema.kind != "next"
    code = Labels(path, schema) if learned and schema.kind == "classification" else None
    with opened(path, None) as file, npz_archive(path, file) as archive:
        size = file.seek(0, 2)
        members = npz_members(path, archive, ["x", "y"] if learned else ["x"], ["lengths"])
        streams = {name: RowStream(path, name, archive, info) for name, info in members.items()}
        total = streams["x"].total
        for name, stream in streams.items():
            if stream.total != total:
                raise cannot_read(path, f"{name!r} has {stream.total:,} rows, and 'x' has {total:,}")
        count = max(1, BLOCK_BYTES // max(1, sum(stream.row_bytes for stream in streams.values())))
        for first in range(0, max(1, total), count):
            rows = min(count, total - first)
            part = npz_part(
                path, {name: each.rows(rows) for name, each in streams.items()}, schema.kind, schema.readout, first
            )
            if part.inputs[0].shape[1] != len(schema.inputs):
                raise cannot_read(
                    path, f"'x' has {part.inputs[0].shape[1]} inputs, and the model reads {len(schema.inputs)}"
                )
            answers = [] if part.targets is None else list(part.targets)
            targets: list[np.ndarray] | None = None
            if learned and code is not None:
                targets = [
                    np.array([code(str(value), f"row {row} of 'y'") for value in np.ravel(y)]).reshape(np.shape(y))
                    for row, y in enumerate(answers, first)
                ]
            elif learned:
                targets = [np.asarray(y, np.float64) for y in answers]
                if part.width != len(schema.targets):
                    raise cannot_read(path, f"'y' has {part.width} numbers, the model gives {len(schema.targets)}")
            yield FileBlock([str(first + row) for row in range(rows)], [0] * rows, part.inputs, targets)
            if progress is not None:
                progress(size * (first + rows) // total, size)


class RowStream:
    """An array of an npz file, some rows at a time. One that is stored column by column is held in memory.

    Attributes:
        total: the number of rows.
        row_bytes: the bytes of one.
    """

    def __init__(self, path: FilePath, name: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._stream = MemberStream(path, archive, info)
        self._held = self._stream.read(min(LONGEST_HEADER, info.file_size))  # read, and not passed on yet
        header = array_header(path, name, self._held, info.file_size)
        self._held = self._held[header.start :]
        if not header.shape:
            raise cannot_read(path, f"array {name!r} is a single number, and sequences need an array")
        self.total, self._shape, self._dtype = header.shape[0], header.shape[1:], header.dtype
        self.row_bytes = math.prod(self._shape) * self._dtype.itemsize
        self._columns: np.ndarray | None = None
        self._first = 0
        if header.by_columns and len(header.shape) > 1:
            if info.file_size > LIMIT:
                raise cannot_read(path, f"array {name!r} is stored column by column and has more than {LIMIT:,} bytes")
            self._columns = self._array(self._take(self.total * self.row_bytes), (*header.shape[::-1],)).T

    def rows(self, count: int) -> np.ndarray:
        """The next rows."""
        first, self._first = self._first, self._first + count
        if self._columns is not None:
            return np.ascontiguousarray(self._columns[first : first + count])
        return self._array(self._take(count * self.row_bytes), (count, *self._shape))

    def _take(self, size: int) -> bytearray:
        if size > len(self._held):
            self._held += self._stream.read(size - len(self._held))
        taken, self._held = self._held[:size], self._held[size:]
        return taken

    def _array(self, data: bytearray, shape: tuple[int, ...]) -> np.ndarray:
        array = np.frombuffer(data, self._dtype, math.prod(shape)).reshape(shape)
        return array.astype(self._dtype.newbyteorder("="), copy=False)
