"""Find out from its cells whether an input column of a user's table holds numbers or categories."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from evenflow.models.data_column import DataColumn
from evenflow.models.table_values import BadCell, Cells, is_missing, is_number, number_values, shown

from .guarded import cannot_read
from .table_file import TableFile

MOST_CATEGORIES = 50  # of an input; each becomes a number that the model reads
MOST_EMBEDDED = 10_000  # of an input with an embedding


class GrowingColumn:
    """An input column, some of whose cells are known: numbers, or words if no cell is a number.

    Args:
        table: the file.
        name: of the column.
        missing: how missing values are filled, "mean" or "previous"; None refuses them.
        embed: the size of the vector that stands for a word; None for a number for each word.
    """

    def __init__(self, table: TableFile, name: str, missing: str | None, embed: int | None) -> None:
        self.table, self.name, self.missing, self.embed = table, name, missing, embed
        self._values = array("d")  # many short arrays of a wide table would take more memory than their numbers
        self._places: dict[str, int] = {}  # of the words, in the order of their first occurrence
        self._lines: list[int] = []  # of these first occurrences
        self._numbers = False  # whether a cell was a number

    def add(self, cells: Cells, lines: Sequence[int]) -> None:
        """Read more cells; the lines are for messages."""
        try:
            if not self._places and not self._all_words(cells):
                values = number_values(cells, self.missing is not None)
                self._numbers = self._numbers or not np.isnan(values).all()
            else:
                values = self._coded(cells, lines)
            self._values.frombytes(np.ascontiguousarray(values).tobytes())
        except BadCell as error:
            hint = "" if self.missing or not is_missing(cells[error.row]) else MISSING_HINT
            raise self.table.bad_cell(self.name, lines, BadCell(error.row, error.problem + hint)) from None

    def finish(self) -> tuple[DataColumn, np.ndarray]:
        """The column, not scaled yet, and its values ``(S,)`` as `column_values` gives them."""
        values = np.frombuffer(self._values)
        if np.isnan(values).all():
            raise cannot_read(self.table.path, f"column {self.name[:20]!r} has no values: ignore={self.name}")
        if not self._places:
            return DataColumn(self.name, missing=self.missing), values
        most, hint = (MOST_CATEGORIES, "embed=8 allows more, ") if self.embed is None else (MOST_EMBEDDED, "")
        if len(self._places) > most:
            raise cannot_read(
                self.table.path,
                f"column {self.name[:20]!r} holds {len(self._places):,} different words, and at most {most:,} "
                f"can be inputs: {hint}ignore={self.name} leaves it out, time={self.name} if it says when",
            )
        words = sorted(self._places)
        order = np.empty(len(words))
        order[[self._places[word] for word in words]] = np.arange(len(words))
        present = ~np.isnan(values)
        values[present] = order[values[present].astype(np.int64)]
        column = DataColumn(self.name, "category", categories=tuple(words), missing=self.missing, embedding=self.embed)
        return column, values

    def _all_words(self, cells: Cells) -> bool:
        """Whether these cells show that the column has categories: words, and no number so far."""
        if self._numbers or (isinstance(cells, np.ndarray) and cells.dtype.kind != "O"):
            return False
        words = {cell.strip() if isinstance(cell, str) else "" for cell in cells}
        words = {word for word in words if not is_missing(word)}
        return bool(words) and not any(is_number(word) for word in words)

    def _coded(self, cells: Cells, lines: Sequence[int]) -> np.ndarray:
        values = np.empty(len(cells))
        for row, cell in enumerate(cells):
            if is_missing(cell):
                if self.missing is None:
                    raise BadCell(row, "has a missing value")
                values[row] = np.nan
                continue
            word = str(cell).strip()
            if word not in self._places:
                if is_number(word):
                    first = f"{self.table.word} {self._lines[0]} the word {shown(next(iter(self._places)))}"
                    raise BadCell(row, f"holds the number {shown(word)}, and {first}")
                self._places[word] = len(self._places)
                self._lines.append(lines[row])
            values[row] = self._places[word]
        return values


MISSING_HINT = "; missing=mean or missing=previous fills it"
