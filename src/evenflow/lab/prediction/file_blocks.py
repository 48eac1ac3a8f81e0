"""The sequences of a CSV or npz file in blocks, in the layouts that training reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenflow.lab.data.guarded import FilePath, cannot_read
from evenflow.lab.data.own_csv import ROWS, csv_header, csv_numbers, csv_rows, csv_words, no_column
from evenflow.lab.data.own_npz import read_npz_part
from evenflow.lab.data.own_sequences import WHOLE
from evenflow.lab.data.text_stream import TextStream
from evenflow.models.data_schema import DataSchema
from evenflow.models.given_sequences import grouped

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


def file_blocks(
    path: FilePath, schema: DataSchema, learned: bool, newest: bool = False, progress: Progress | None = None
) -> Iterator[FileBlock]:
    """The sequences of a file that the schema describes.

    The rows of a sequence must stand together, or the file must be small enough for one block.

    Args:
        path: a CSV file, or an npz file if its name ends so.
        schema: the columns to read.
        learned: whether to read the targets too.
        newest: pass on the last `schema.length` steps of each sequence only, and one long series whole.
        progress: called with the bytes read so far and those of the file.
    """
    if str(path).lower().endswith(".npz"):
        return _npz_blocks(path, schema, learned)
    return _CsvBlocks(path, schema, learned, newest, progress).read()


def _npz_blocks(path: FilePath, schema: DataSchema, learned: bool) -> Iterator[FileBlock]:
    inputs, found = read_npz_part(path, schema.kind, schema.readout, learned)
    if inputs[0].shape[1] != len(schema.inputs):
        raise cannot_read(path, f"'x' has {inputs[0].shape[1]} inputs, and the model reads {len(schema.inputs)}")
    targets: list[np.ndarray] | None = None
    if learned and schema.kind != "next":
        if schema.kind == "classification":
            code = _Labels(path, schema)
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


@dataclass
class _Rows:
    """Rows of a table whose sequences are not complete yet."""

    lines: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    inputs: list[np.ndarray] = field(default_factory=list)
    targets: list[np.ndarray] = field(default_factory=list)


class _CsvBlocks:
    def __init__(
        self, path: FilePath, schema: DataSchema, learned: bool, newest: bool, progress: Progress | None
    ) -> None:
        self.path, self.schema, self.newest, self.progress = path, schema, newest, progress
        self.learned = learned and schema.kind != "next"
        self.stream = TextStream(path)
        self.done: set[str] = set()
        self.start = 0  # the step of the series that the held rows begin with

    def read(self) -> Iterator[FileBlock]:
        rows = csv_rows(self.path, self.stream)
        header = csv_header(self.path, next(rows, (0, []))[1])
        needed = [column.name for column in (*self.schema.inputs, *(self.schema.targets if self.learned else ()))]
        for name in needed:
            if name not in header:
                raise no_column(self.path, name, header)
        self.grouped = self.schema.sequence in header
        held, any_row = _Rows(), False
        while chunk := list(itertools.islice(rows, ROWS)):
            any_row = True
            self._add(
                held,
                [line for line, _ in chunk],
                dict(zip(header, zip(*(row for _, row in chunk), strict=True), strict=True)),
            )
            if len(held.lines) >= BLOCK_ROWS:
                if self.progress is not None:
                    self.progress(self.stream.position, self.stream.size)
                yield from self._blocks(held, last=False)
        if not any_row:
            raise cannot_read(self.path, "it has a line of names and no rows")
        yield from self._blocks(held, last=True)

    def _add(self, held: _Rows, lines: list[int], columns: dict[str, Sequence[str]]) -> None:
        schema, path = self.schema, self.path
        values = [csv_numbers(path, column.name, columns[column.name], lines) for column in schema.inputs]
        held.inputs.append(np.stack(values, 1))
        held.lines += lines
        if self.grouped:
            held.ids += csv_words(path, schema.sequence, columns[schema.sequence], lines)
        if not self.learned:
            return
        if schema.kind == "classification":
            code, name = _Labels(path, schema), schema.targets[0].name
            words = csv_words(path, name, columns[name], lines)
            held.targets.append(
                np.array(
                    [code(word, f"line {line}, column {name!r},") for line, word in zip(lines, words, strict=True)]
                )
            )
        else:
            numbers = [csv_numbers(path, column.name, columns[column.name], lines) for column in schema.targets]
            held.targets.append(np.stack(numbers, 1))

    def _blocks(self, held: _Rows, last: bool) -> Iterator[FileBlock]:
        """The complete sequences of the rows held, which are then dropped."""
        inputs = np.concatenate(held.inputs)
        targets = np.concatenate(held.targets) if held.targets else None
        steps, whole = len(inputs), self.newest or self.schema.length is None
        if self.grouped:
            complete = np.array([last or identity != held.ids[-1] for identity in held.ids])
            for row, identity in enumerate(held.ids):
                if identity in self.done:
                    raise cannot_read(
                        self.path,
                        f"line {held.lines[row]} continues sequence {identity[:SHOWN]!r} after other sequences; in a "
                        "file of this size the rows of a sequence must stand together",
                    )
        else:
            length = steps if whole else int(self.schema.length or steps)
            complete = np.arange(steps) < (steps if last else 0 if whole else steps // length * length)
        kept, passed = np.flatnonzero(~complete), np.flatnonzero(complete)
        if len(passed):
            ids = [held.ids[row] for row in passed.tolist()] if self.grouped else None
            order, lengths = grouped(ids, len(passed), None if whole else self.schema.length)
            rows, cuts = passed[order], np.cumsum(lengths)[:-1]
            yield self._block(held, list(np.split(rows, cuts)), inputs, targets)
            self.done.update(ids or ())
        if self.newest and self.schema.length is not None and len(kept) > self.schema.length:
            kept = kept[-self.schema.length :]
        if not self.grouped:
            self.start += int(kept[0]) if len(kept) else steps
        held.lines = [held.lines[row] for row in kept.tolist()]
        held.ids = [held.ids[row] for row in kept.tolist()] if self.grouped else []
        held.inputs, held.targets = [inputs[kept]], [] if targets is None else [targets[kept]]

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
                    raise cannot_read(self.path, f"line {line} changes the target of its sequence, which has one")
            learned = [values[-1] for values in learned]
        return FileBlock(names, starts, [inputs[part] for part in parts], learned)


class _Labels:
    """Turns the words of a file into positions of labels."""

    def __init__(self, path: FilePath, schema: DataSchema) -> None:
        self.path, self.labels = path, schema.labels
        self.positions: dict[Any, int] = {label: place for place, label in enumerate(schema.labels)}
        self.whole = isinstance(schema.labels[0], int)

    def __call__(self, word: str, place: str) -> int:
        found = self.positions.get(int(word) if self.whole and WHOLE.fullmatch(word) else word)
        if found is None:
            known = ", ".join(map(str, self.labels[:SHOWN])) + (", ..." if len(self.labels) > SHOWN else "")
            raise cannot_read(self.path, f"{place} holds {word[:SHOWN]!r}, and the labels of the model are {known}")
        return found
