"""Read a user's own sequences from a table with one row per step."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from evenflow.models.data_column import DataColumn
from evenflow.models.table_values import BadCell, grouped, is_number, number_values, time_gaps, time_values

from .guarded import FilePath, cannot_read
from .own_columns import GrowingColumn
from .own_sequences import WHOLE, Clock, OwnSequences, check_choices, classes
from .table_file import TableFile
from .table_layout import TableLayout

LONG_GAP = 2  # times the median: a longer time between two steps is reported


def read_table(path: FilePath, *, kind: str | None = None, readout: str | None = None, **layout: Any) -> OwnSequences:
    """Read sequences from a CSV or Parquet file with a row for each step.

    - ``sequence``: the name of the sequence that a step belongs to, any text. Steps of different sequences may
      alternate. Without this column the file is one long series.
    - ``target``: the target. If it is the same at all steps of each sequence, it is learned after the last step
      (readout "last"); otherwise, and for one long series, at every step (readout "every").
    - ``time``: the rows of a sequence are sorted by it. Without this column they are in the order of time.
    - every other column is an input: numbers, or words, of which there may be 50 different ones.

    Targets are classes if all are whole numbers or words, and numbers (regression) if one has a decimal point or an
    exponent. Without a target column the inputs of the next step are the targets.

    Args:
        path: a UTF-8 CSV file, compressed with gzip if its name ends in ``.gz``, whose first line names the columns;
            they are separated by commas, or by semicolons or tabs if the first line has no comma. Or a Parquet file,
            whose name ends in ``.parquet`` or ``.pq``; it needs pyarrow.
        kind: "classification", "regression" or "next"; with "next", target columns are ignored. Default: what the
            targets look like.
        readout: "last" or "every". Default: what the targets look like.
        layout: arguments of `TableLayout`: other names of these columns, the choice of inputs, and missing values.

    Raises:
        ValueError: the file is missing or damaged, or a row is invalid; the message names the line.
    """
    check_choices(kind, readout)
    table = _read(path, TableLayout(**layout), kind)
    order, lengths, values = table.order, table.lengths, table.values
    cuts = np.cumsum(lengths)[:-1]
    inputs = np.split(values[order], cuts)
    ids = tuple(dict.fromkeys(table.ids or ()))  # sequences are in the order of their first rows
    known: dict[str, Any] = {"groups": _one_each(path, table), "clock": table.clock, "ids": ids}
    if not table.targets:
        short = int(lengths.argmin())
        if lengths[short] < 2:
            place = table.place(int(order[int(lengths[:short].sum())]))
            raise cannot_read(path, f"the sequence of {place} has one step, and predicting the next needs two")
        outputs = sum(column.kind == "number" for column in table.columns)
        if not outputs:
            raise cannot_read(path, "it has no column of numbers, and predicting the next step needs one")
        return OwnSequences(inputs, None, "next", "every", table.columns, (), outputs, **known)
    tokens = list(table.targets.values())
    kind = kind or ("classification" if len(tokens) == 1 and _are_classes(tokens[0]) else "regression")
    if kind == "classification":
        if len(tokens) > 1:
            raise cannot_read(path, f"classification needs one target column, got {len(tokens)}")
        labels, positions = classes(path, tokens[0])
        learned, outputs = np.array([positions[token] for token in tokens[0]], np.int64), len(labels)
    else:
        labels, outputs = (), len(tokens)
        learned = np.stack([table.numbers(name) for name in table.targets], 1).astype(np.float32)
    learned = learned[order]
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    changes = (learned != learned[starts]).reshape(len(learned), -1).any(1)
    readout = readout or ("every" if table.ids is None or changes.any() else "last")
    if readout == "every":
        return OwnSequences(inputs, np.split(learned, cuts), kind, readout, table.columns, labels, outputs, **known)
    if changes.any():
        place = table.place(int(order[int(changes.argmax())]))
        raise cannot_read(path, f"{place} changes the target of its sequence, which for readout last has one")
    last = learned[np.cumsum(lengths) - 1]
    return OwnSequences(inputs, last, kind, readout, table.columns, labels, outputs, **known)


class _Table(NamedTuple):
    """The columns of a file by their use, in the order of its rows."""

    file: TableFile
    lines: Sequence[int]
    columns: tuple[DataColumn, ...]
    values: np.ndarray  # (S, C) float32, of the inputs
    targets: dict[str, list[str]]  # still text
    ids: list[str] | None
    members: list[str]
    order: np.ndarray
    lengths: np.ndarray
    clock: Clock | None

    def place(self, row: int) -> str:
        return f"{self.file.word} {self.lines[row]}"

    def numbers(self, name: str) -> np.ndarray:
        try:
            return number_values(self.targets[name], missing=False)
        except BadCell as error:
            raise self.file.bad_cell(name, self.lines, error) from None


def _read(path: FilePath, layout: TableLayout, kind: str | None) -> _Table:
    file = TableFile(path, held=True)
    if layout.sequence not in file.header and layout.sequence != TableLayout.sequence:
        file.need([layout.sequence])
    learned, names, timed = layout.learned(file, kind), layout.chosen(file), layout.timed(file)
    growing = [GrowingColumn(file, name, layout.missing, layout.embed) for name in names]
    named = layout.sequence in file.header
    lines = array("q")
    words: dict[str, list[str]] = {name: [] for name in learned}
    ids: list[str] = []
    members: list[str] = []
    times: list[np.ndarray] = []
    unit: str | None = None
    for numbers, cells in file.chunks():
        for column in growing:
            column.add(cells[column.name], numbers)
        for name in learned:
            words[name] += file.words(name, cells[name], numbers)
        if named:
            ids += file.words(layout.sequence, cells[layout.sequence], numbers)
        if layout.group is not None:
            members += file.words(layout.group, cells[layout.group], numbers)
        if timed:
            try:
                values, unit = time_values(cells[layout.time], unit)
            except BadCell as error:
                hint = f"; ignore={layout.time} leaves the column out"
                raise file.bad_cell(layout.time, numbers, BadCell(error.row, error.problem + hint)) from None
            times.append(values)
        lines.extend(numbers)
    when = np.concatenate(times) if times else None
    try:
        order, lengths = grouped(ids if named else None, len(lines), when)
    except BadCell as error:
        raise file.bad_cell(layout.time, lines, error) from None
    finished = [column.finish() for column in growing]
    columns = [column for column, _ in finished]
    arrays = [values for _, values in finished]
    clock = None
    if when is not None and unit is not None:
        gaps = time_gaps(when[order], lengths)
        steps = np.delete(gaps, np.cumsum(lengths) - lengths)  # without the first step of each sequence
        median = float(np.median(steps)) if len(steps) else 0.0
        longest = int(gaps.argmax())
        clock = Clock(
            layout.time,
            unit,
            median if median > 0 else None,
            int((steps > LONG_GAP * median).sum()) if median > 0 else 0,
            float(gaps[longest]),
            f"{file.word} {lines[int(order[longest])]}",
        )
        if layout.gap:
            columns.append(DataColumn(f"{layout.time} gap", "gap"))
            arrays.append(np.empty_like(gaps))
            arrays[-1][order] = gaps
    values = np.empty((len(lines), len(arrays)), np.float32)
    for place in range(len(arrays)):
        values[:, place] = arrays[place]
    return _Table(file, lines, tuple(columns), values, words, ids if named else None, members, order, lengths, clock)


def _one_each(path: FilePath, table: _Table) -> tuple[str, ...]:
    """The group of each sequence, which is the same in all of its rows."""
    if not table.members:
        return ()
    groups = []
    for rows in np.split(table.order, np.cumsum(table.lengths)[:-1]):
        for row in rows.tolist():
            if table.members[row] != table.members[rows[0]]:
                raise cannot_read(path, f"{table.place(row)} changes the group of its sequence, which has one")
        groups.append(table.members[rows[0]])
    return tuple(groups)


def _are_classes(tokens: list[str]) -> bool:
    """Whether all targets are whole numbers or words; one with a decimal point or an exponent makes them numbers."""
    return all(WHOLE.fullmatch(token) or not is_number(token) for token in set(tokens))
