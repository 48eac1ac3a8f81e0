"""The sequences of a table in blocks, so that a file may be larger than the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenflow.models.data_schema import DataSchema
from evenflow.models.table_values import (
    BadCell,
    Cells,
    check_time_step,
    column_values,
    cut_lengths,
    grouped,
    number_values,
    time_gaps,
    time_values,
)

from .guarded import FilePath, cannot_read
from .own_sequences import WHOLE
from .table_file import TableFile

BLOCK_ROWS = 1 << 16  # rows of a table that are held at least, before their sequences are passed on
SHOWN = 20  # characters of a word in a message
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FileBlock:
    """Some sequences of a file.

    Attributes:
        names: the name of each sequence; for pieces of one long series "".
        starts: the number of the first step of each, which is not 0 for later pieces of a sequence.
        inputs: N arrays ``(T_n, I)``.
        targets: N arrays, ``(T_n,)`` positions of labels or ``(T_n, O)`` numbers; without T_n for readout "last".
            None if they were not asked for, and for kind "next".
    """

    names: list[str]
    starts: list[int]
    inputs: list[np.ndarray]
    targets: list[np.ndarray] | None


@dataclass
class _Rows:
    """Rows of a table whose sequences are not complete yet."""

    lines: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    times: list[np.ndarray] = field(default_factory=list)
    inputs: list[np.ndarray] = field(default_factory=list)
    targets: list[np.ndarray] = field(default_factory=list)


class TableBlocks:
    """Reads a table; the arguments are those of `file_blocks`."""

    def __init__(
        self, path: FilePath, schema: DataSchema, learned: bool, newest: bool, progress: Progress | None
    ) -> None:
        self.path, self.schema, self.newest, self.progress = path, schema, newest, progress
        self.learned = learned and schema.kind != "next"
        self.table = TableFile(path)
        self.table.need(schema.time if column.kind == "gap" else column.name for column in schema.inputs)
        self.table.need(column.name for column in (schema.targets if self.learned else ()))
        self.grouped = schema.sequence in self.table.header
        self.timed = schema.time_unit is not None and schema.time in self.table.header
        self.code = Labels(path, schema) if self.learned and schema.kind == "classification" else None
        self.done: set[str] = set()
        self.start = 0  # the step of the series that the held rows begin with
        self.before: float | None = None  # the time of the row before the held ones, of one long series
        self.checked = False  # whether the times have been compared with those of training

    def read(self) -> Iterator[FileBlock]:
        """The blocks, in the order of the file."""
        held = _Rows()
        for lines, cells in self.table.chunks():
            self._add(held, lines, cells)
            if len(held.lines) >= BLOCK_ROWS:
                if self.progress is not None:
                    self.progress(self.table.position, self.table.size)
                yield from self._blocks(held, last=False)
        yield from self._blocks(held, last=True)

    def _add(self, held: _Rows, lines: list[int], cells: dict[str, Cells]) -> None:
        schema, table = self.schema, self.table
        name = ""
        try:
            values = np.zeros((len(lines), len(schema.inputs)))
            for place, column in enumerate(schema.inputs):
                if column.kind != "gap":
                    values[:, place] = column_values(column, cells[name := column.name])
            held.inputs.append(values)
            if self.timed:
                held.times.append(time_values(cells[name := schema.time], schema.time_unit)[0])
            if self.learned and self.code is None:
                numbers = [number_values(cells[name := column.name], missing=False) for column in schema.targets]
                held.targets.append(np.stack(numbers, 1))
        except BadCell as error:
            raise table.bad_cell(name, lines, error) from None
        held.lines += lines
        if self.grouped:
            held.ids += table.words(schema.sequence, cells[schema.sequence], lines)
        if self.code is not None:
            name = schema.targets[0].name
            words = table.words(name, cells[name], lines)
            places = [f"{table.word} {line}, column {name!r}," for line in lines]
            held.targets.append(np.array([self.code(word, place) for word, place in zip(words, places, strict=True)]))

    def _blocks(self, held: _Rows, last: bool) -> Iterator[FileBlock]:
        """The complete sequences of the rows held, which are then dropped."""
        inputs = np.concatenate(held.inputs)
        targets = np.concatenate(held.targets) if held.targets else None
        times = np.concatenate(held.times) if held.times else None
        steps, whole = len(inputs), self.newest or self.schema.length is None
        if self.grouped:
            complete = np.array([last or identity != held.ids[-1] for identity in held.ids])
            for row, identity in enumerate(held.ids):
                if identity in self.done:
                    raise cannot_read(
                        self.path,
                        f"{self.table.word} {held.lines[row]} continues sequence {identity[:SHOWN]!r} after other "
                        "sequences; in a file of this size the rows of a sequence must stand together",
                    )
        else:
            length = steps if whole else int(self.schema.length or steps)
            complete = np.arange(steps) < (steps if last else 0 if whole else steps // length * length)
            if times is not None and not (last and self.before is None):
                self._check_order(times, held.lines)
        kept, passed = np.flatnonzero(~complete), np.flatnonzero(complete)
        if len(passed):
            ids = [held.ids[row] for row in passed.tolist()] if self.grouped else None
            order, lengths = self._ordered(ids, None if times is None else times[passed], held, passed)
            rows = passed[order]
            if times is not None:
                self._fill_gaps(inputs, rows, times, lengths, held.lines)
            cuts = np.cumsum(cut_lengths(lengths, None if whole else self.schema.length))[:-1]
            yield self._block(held, list(np.split(rows, cuts)), inputs, targets)
            self.done.update(ids or ())
        if self.newest and self.schema.length is not None and len(kept) > self.schema.length:
            kept = kept[-self.schema.length :]
        if not self.grouped:
            first = int(kept[0]) if len(kept) else steps
            self.start += first
            if times is not None and first:
                self.before = float(times[first - 1])
        held.lines = [held.lines[row] for row in kept.tolist()]
        held.ids = [held.ids[row] for row in kept.tolist()] if self.grouped else []
        held.times = [] if times is None else [times[kept]]
        held.inputs, held.targets = [inputs[kept]], [] if targets is None else [targets[kept]]

    def _ordered(
        self, ids: list[str] | None, times: np.ndarray | None, held: _Rows, passed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        try:
            return grouped(ids, len(passed), times)
        except BadCell as error:
            raise self.table.bad_cell(self.schema.time, [held.lines[row] for row in passed.tolist()], error) from None

    def _check_order(self, times: np.ndarray, lines: list[int]) -> None:
        back = np.diff(times, prepend=times[0] if self.before is None else self.before) < 0
        if back.any():
            problem = "goes back in time; a long series of this size must be in the order of time"
            raise self.table.bad_cell(self.schema.time, lines, BadCell(int(back.argmax()), problem))

    def _fill_gaps(
        self, inputs: np.ndarray, rows: np.ndarray, times: np.ndarray, lengths: np.ndarray, lines: list[int]
    ) -> None:
        """Compute the inputs of kind gap, and compare the times with those of training once."""
        gaps = time_gaps(times[rows], lengths)
        if not self.grouped and self.before is not None:
            gaps[0] = times[rows[0]] - self.before
        for place, column in enumerate(self.schema.inputs):
            if column.kind == "gap":
                inputs[rows, place] = gaps
        between = np.delete(gaps, np.cumsum(lengths) - lengths)
        if len(between) and not self.checked:
            self.checked = True
            if problem := check_time_step(float(np.median(between)), self.schema.time_step):
                raise self.table.bad_cell(self.schema.time, lines, BadCell(int(rows[0]), problem))

    def _block(self, held: _Rows, parts: list[np.ndarray], inputs: np.ndarray, targets: np.ndarray | None) -> FileBlock:
        if self.newest and self.schema.length is not None:
            parts = [part[-self.schema.length :] for part in parts]
        names = [held.ids[int(part[0])] if self.grouped else "" for part in parts]
        starts: list[int] = []
        for n, part in enumerate(parts):
            if not self.grouped:
                starts.append(self.start + int(part[0]))
            else:  # the pieces of a sequence stand side by side
                starts.append(starts[-1] + len(parts[n - 1]) if n and names[n] == names[n - 1] else 0)
        learned: list[np.ndarray] | None = None if targets is None else [targets[part] for part in parts]
        if learned is not None and self.schema.readout == "last":
            for part, values in zip(parts, learned, strict=True):
                if changed := np.flatnonzero((values != values[0]).reshape(len(values), -1).any(1)).tolist():
                    line = held.lines[int(part[changed[0]])]
                    raise cannot_read(
                        self.path, f"{self.table.word} {line} changes the target of its sequence, which has one"
                    )
            learned = [values[-1] for values in learned]
        return FileBlock(names, starts, [inputs[part] for part in parts], learned)


class Labels:
    """Turns the words of a file into positions of labels."""

    def __init__(self, path: FilePath, schema: DataSchema) -> None:
        self.path, self.labels = path, schema.labels
        self.positions: dict[Any, int] = {label: place for place, label in enumerate(schema.labels)}
        self.whole = isinstance(schema.labels[0], int)

    def __call__(self, word: str, place: str) -> int:
        position = self.positions.get(int(word) if self.whole and WHOLE.fullmatch(word) else word)
        if position is None:
            known = ", ".join(map(str, self.labels[:SHOWN])) + (", ..." if len(self.labels) > SHOWN else "")
            raise cannot_read(self.path, f"{place} holds {word[:SHOWN]!r}, and the labels of the model are {known}")
        return position
