"""Read the rows of a table from a CSV or a Parquet file, some at a time."""

from __future__ import annotations

import csv
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from evenflow.models.table_values import SHOWN, BadCell, Cells, is_missing, is_number

from .guarded import FilePath, cannot_read, opened
from .text_stream import TextStream

ROWS = 1 << 9  # parsed at a time; with more, Python's garbage collector takes most of the time
CELLS = 1 << 18  # parsed at a time: as text a cell takes eight times the memory of its number
PARQUET = (".parquet", ".pq")
Chunk = tuple[list[int], dict[str, Cells]]  # the number of each row in the file, and the cells of each column


class TableFile:
    """A table with a row for each step: CSV, or Parquet if its name ends so.

    Args:
        path: the file.
        held: whether all of it will be held in memory, see `TextStream`.

    Attributes:
        path: the file.
        header: the names of the columns.
        word: what the number of a row counts, "line" or "row", for messages.
        size: bytes of the file.
    """

    def __init__(self, path: FilePath, held: bool = False) -> None:
        self.path = path
        self._parquet: Any = None
        if str(path).lower().endswith(PARQUET):
            self.word, self._parquet = "row", _open_parquet(path)
            self.size, self.header = os.stat(path).st_size, csv_header(path, self._parquet.schema_arrow.names)
        else:
            self.word, self._stream = "line", TextStream(path, held)
            self.size, self._rows = self._stream.size, _csv_rows(path, self._stream)
            self.header = csv_header(path, next(self._rows, (0, []))[1])
        self._read = 0

    @property
    def position(self) -> int:
        """About how many bytes have been read."""
        return self._stream.position if self._parquet is None else self._read

    def chunks(self) -> Iterator[Chunk]:
        """The rows, in the order of the file."""
        if self._parquet is not None:
            yield from self._row_groups()
            return
        count, rows = 0, max(1, min(ROWS, CELLS // len(self.header)))
        while chunk := list(itertools.islice(self._rows, rows)):
            count += len(chunk)
            columns = zip(*(row for _, row in chunk), strict=True)
            yield [line for line, _ in chunk], dict(zip(self.header, columns, strict=True))
        if not count:
            raise cannot_read(self.path, "it has a line of names and no rows")

    def _row_groups(self) -> Iterator[Chunk]:
        from pyarrow import ArrowException

        first, total = 1, max(1, self._parquet.metadata.num_rows)
        if not self._parquet.metadata.num_rows:
            raise cannot_read(self.path, "it has no rows")
        try:
            for batch in self._parquet.iter_batches(batch_size=64 * ROWS):
                columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
                yield list(range(first, first + batch.num_rows)), dict(zip(self.header, columns, strict=True))
                first += batch.num_rows
                self._read = self.size * first // total
        except (ArrowException, OSError, ValueError, NotImplementedError) as error:
            raise cannot_read(self.path, f"it is damaged ({_first_line(error)})") from None

    def need(self, names: Iterable[str]) -> None:
        """Raise a ValueError unless the table has these columns."""
        for name in names:
            if name not in self.header:
                columns = ", ".join(repr(column[:SHOWN]) for column in self.header[:SHOWN])
                raise cannot_read(self.path, f"it has no column {name[:SHOWN]!r}, found {columns}")

    def bad_cell(self, name: str, lines: Sequence[int], error: BadCell) -> ValueError:
        """The error for a cell of a column."""
        return cannot_read(self.path, f"{self.word} {lines[error.row]}, column {name[:SHOWN]!r}, {error.problem}")

    def words(self, name: str, cells: Cells, lines: Sequence[int]) -> list[str]:
        """The cells of a column as text, none of which may be missing."""
        if isinstance(cells, np.ndarray):
            cells = ["" if is_missing(cell) else cell for cell in cells.tolist()]
        stripped = [str(cell).strip() for cell in cells]
        if "" in stripped:
            raise self.bad_cell(name, lines, BadCell(stripped.index(""), "has a missing value"))
        return stripped


def _open_parquet(path: FilePath) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError('Parquet files need the package pyarrow: pip install "evenflow[parquet]"') from None
    opened(path, None).close()  # reports a missing file, a folder and the like
    try:
        return parquet.ParquetFile(path)
    except (ArrowException, OSError, ValueError) as error:
        raise cannot_read(path, f"it is not a Parquet file ({_first_line(error)[:80]})") from None


def _first_line(error: Exception) -> str:
    """What an error of pyarrow says first; some say nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _csv_rows(path: FilePath, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The line number (from 1) and the cells of each row; all rows must be equally long, empty lines are ignored."""
    rest, opening = iter(lines), []
    for line in rest:
        opening.append(line)
        if line.strip("\r\n"):
            break
    start = "".join(opening)
    separator = "," if "," in start else next((mark for mark in ";\t" if mark in start), ",")
    reader = csv.reader(itertools.chain(opening, rest), delimiter=separator, strict=True)
    width = 0
    try:
        for row in reader:
            if not row:
                continue
            width = width or len(row)
            if len(row) != width:
                raise cannot_read(path, f"line {reader.line_num} has {len(row)} cells, the first line has {width}")
            yield reader.line_num, row
    except csv.Error as error:
        raise cannot_read(path, f"line {reader.line_num} is not CSV ({error})") from None


def csv_header(path: FilePath, cells: Sequence[str]) -> list[str]:
    """The names of the columns, which must be different and not all numbers."""
    header = [cell.strip() for cell in cells]
    if not any(header):
        raise cannot_read(path, "there are no columns in it")
    if "" in header:
        raise cannot_read(path, f"column {header.index('') + 1} has no name")
    counts = Counter(header)
    if doubled := [name for name in header if counts[name] > 1][:1]:
        raise cannot_read(path, f"two columns are called {doubled[0][:SHOWN]!r}")
    if all(is_number(name) for name in header):
        raise cannot_read(path, f"its first line must name the columns, got numbers ({header[0][:SHOWN]!r})")
    return header
