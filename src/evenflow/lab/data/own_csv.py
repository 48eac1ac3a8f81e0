"""Read a user's own sequences from a CSV file with one row per step."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from .guarded import FilePath, cannot_read, read_text
from .number_table import LARGEST, SHOWN, number
from .own_sequences import LIMIT, WHOLE, OwnSequences, check_choices, classes

ROWS = 1 << 9  # parsed at a time; with more, Python's garbage collector takes most of the time
SEQUENCE, TARGET, TIME = "sequence", "target", "time"


def read_csv(
    path: FilePath,
    sequence: str = SEQUENCE,
    target: str = TARGET,
    kind: str | None = None,
    readout: str | None = None,
    group: str | None = None,
    inputs: str | None = None,
    ignore: str | None = None,
) -> OwnSequences:
    """Read sequences from a CSV file whose first line names the columns; each further line is one step.

    - ``sequence``: the name of the sequence that a step belongs to, any text. Steps keep the order of the file; steps
      of different sequences may alternate. Without this column the file is one long series.
    - ``target``: the target. If it is the same at all steps of each sequence, it is learned after the last step
      (readout "last"); otherwise, and for one long series, at every step (readout "every").
    - ``time``: ignored. The order of the file is the order of time.
    - every other column is an input and holds numbers.

    Targets are classes if all are whole numbers or words, and numbers (regression) if one has a decimal point or an
    exponent. Without a target column the inputs of the next step are the targets. Columns are separated by commas, or
    by semicolons or tabs if the first line has no comma.

    Args:
        path: a UTF-8 file, compressed with gzip if its name ends in ``.gz``.
        sequence: name of the column of sequences.
        target: name of the column of targets, or several names with commas for a regression on several numbers.
        kind: "classification", "regression" or "next"; with "next", target columns are ignored. Default: what the
            targets look like.
        readout: "last" or "every". Default: what the targets look like.
        group: name of a column that says what a sequence belongs to, such as a person.
        inputs: names of the columns to read, with commas. Default: all others.
        ignore: names of columns to leave out, with commas.

    Raises:
        ValueError: the file is missing or damaged, or a row is invalid; the message names the line.
    """
    check_choices(kind, readout)
    named = {"group": group, "inputs": inputs, "ignore": ignore}
    lines, names, (ids, tokens, members, table) = _columns(path, sequence, target, kind, named)
    order, lengths = _grouped(path, ids, lines, len(table))
    cuts = np.cumsum(lengths)[:-1]
    values_in = np.split(table[order], cuts)
    groups = _one_each(path, members, lines, order, lengths)
    if not tokens:
        short = int(lengths.argmin())
        if lengths[short] < 2:
            row = lines[int(order[int(lengths[:short].sum())])]
            raise cannot_read(path, f"the sequence of line {row} has one step, and predicting the next needs two")
        return OwnSequences(values_in, None, "next", "every", names, (), len(names), groups=groups)
    kind = kind or ("classification" if len(tokens) == 1 and _are_classes(tokens[0]) else "regression")
    if kind == "classification":
        if len(tokens) > 1:
            raise cannot_read(path, f"classification needs one target column, got {len(tokens)}")
        labels, positions = classes(path, tokens[0])
        values, outputs = np.array([positions[token] for token in tokens[0]], np.int64), len(labels)
    else:
        columns = [
            csv_numbers(path, name, column, lines) for name, column in zip(split_names(target), tokens, strict=True)
        ]
        labels, values, outputs = (), np.stack(columns, 1).astype(np.float32), len(tokens)
    values = values[order]
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    changes = (values != values[starts]).reshape(len(values), -1).any(1)
    readout = readout or ("every" if ids is None or changes.any() else "last")
    if readout == "every":
        return OwnSequences(values_in, np.split(values, cuts), kind, readout, names, labels, outputs, groups=groups)
    if changes.any():
        row = lines[int(order[int(changes.argmax())])]
        raise cannot_read(path, f"line {row} changes the target of its sequence, which for readout last has one")
    last = values[np.cumsum(lengths) - 1]
    return OwnSequences(values_in, last, kind, readout, names, labels, outputs, groups=groups)


# Sequences, targets (still text), groups, inputs (S, I).
Columns = tuple[list[str] | None, list[list[str]], list[str], np.ndarray]


def _columns(
    path: FilePath, sequence: str, target: str, kind: str | None, named: Mapping[str, str | None]
) -> tuple[list[int], tuple[str, ...], Columns]:
    """The line number of each row, the names of the inputs, and the columns by their use."""
    text = read_text(path, LIMIT)
    rows = csv_rows(path, io.StringIO(text, newline=""))
    header = csv_header(path, next(rows, (0, []))[1])
    if sequence not in header and sequence != SEQUENCE:
        raise no_column(path, sequence, header)
    targets, group = split_names(target), named["group"]
    left_out = split_names(named["ignore"] or "")
    asked = split_names(named["inputs"] or "")
    for name in (*([] if group is None else [group]), *left_out, *asked):
        if name not in header:
            raise no_column(path, name, header)
    present = [name for name in targets if name in header]
    if len(present) < len(targets) and (present or target != TARGET or kind not in (None, "next")):
        raise no_column(path, next(name for name in targets if name not in header), header)
    others = (sequence, group, *targets, *left_out)
    names = tuple(name for name in asked or header if name not in others and (asked or name != TIME))
    if len(names) < len(asked):
        name = next(name for name in asked if name in others)
        raise ValueError(f"inputs must be columns without another use, got {name!r}")
    if not names:
        raise cannot_read(path, f"it has no input column, only {', '.join(map(repr, header))}")
    learned = [] if kind == "next" else present
    lines: list[int] = []
    ids: list[str] = []
    tokens: list[list[str]] = [[] for _ in learned]
    members: list[str] = []
    tables: list[np.ndarray] = []
    while chunk := list(itertools.islice(rows, ROWS)):
        numbers = [line for line, _ in chunk]
        columns = dict(zip(header, zip(*(row for _, row in chunk), strict=True), strict=True))
        tables.append(
            np.stack([csv_numbers(path, name, columns[name], numbers) for name in names], 1).astype(np.float32)
        )
        ids += [identity.strip() for identity in columns.get(sequence, ())]
        for name, column in zip(learned, tokens, strict=True):
            column += csv_words(path, name, columns[name], numbers)
        if group is not None:
            members += csv_words(path, group, columns[group], numbers)
        lines += numbers
    if not lines:
        raise cannot_read(path, "it has a line of names and no rows")
    return lines, names, (ids if sequence in header else None, tokens, members, np.concatenate(tables))


def csv_rows(path: FilePath, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
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
    header = [cell.strip() for cell in cells]
    if not any(header):
        raise cannot_read(path, "there are no columns in it")
    if "" in header:
        raise cannot_read(path, f"column {header.index('') + 1} has no name")
    if doubled := [name for name in header if header.count(name) > 1][:1]:
        raise cannot_read(path, f"two columns are called {doubled[0][:SHOWN]!r}")
    if all(_is_number(name) for name in header):
        raise cannot_read(path, f"its first line must name the columns, got numbers ({header[0][:SHOWN]!r})")
    return header


def _grouped(path: FilePath, ids: list[str] | None, lines: list[int], steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The order that sorts the rows by sequence, and the lengths of the sequences."""
    if ids is None:
        return np.arange(steps), np.array([steps])
    if "" in ids:
        raise cannot_read(path, f"line {lines[ids.index('')]} does not say to which sequence it belongs")
    places: dict[str, int] = {}
    codes = np.fromiter((places.setdefault(identity, len(places)) for identity in ids), np.int64, steps)
    return np.argsort(codes, kind="stable"), np.bincount(codes)


def csv_numbers(path: FilePath, name: str, tokens: Sequence[str], lines: Sequence[int]) -> np.ndarray:
    try:
        values = np.array(tokens, np.float64)
        if (np.abs(values) <= LARGEST).all():
            return values
    except ValueError:
        pass
    place = f", column {name[:SHOWN]!r},"
    return np.array([number(path, f"line {line}{place}", token) for line, token in zip(lines, tokens, strict=True)])


def csv_words(path: FilePath, name: str, tokens: Sequence[str], lines: Sequence[int]) -> list[str]:
    stripped = [token.strip() for token in tokens]
    if "" in stripped:
        line = lines[stripped.index("")]
        raise cannot_read(path, f"line {line}, column {name[:SHOWN]!r}, has a missing value")
    return stripped


def _are_classes(tokens: Sequence[str]) -> bool:
    """Whether all targets are whole numbers or words; one with a decimal point or an exponent makes them numbers."""
    return all(WHOLE.fullmatch(token) or not _is_number(token) for token in set(tokens))


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


def split_names(names: str) -> list[str]:
    """The names in a text with commas between them."""
    return [name.strip() for name in names.split(",")] if names else []


def _one_each(
    path: FilePath, members: list[str], lines: list[int], order: np.ndarray, lengths: np.ndarray
) -> tuple[str, ...]:
    """The group of each sequence, which is the same in all of its rows."""
    if not members:
        return ()
    ends = np.cumsum(lengths)
    rows = [order[end - length : end].tolist() for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    for each in rows:
        for row in each:
            if members[row] != members[each[0]]:
                raise cannot_read(path, f"line {lines[row]} changes the group of its sequence, which has one")
    return tuple(members[each[0]] for each in rows)


def no_column(path: FilePath, name: str, header: Sequence[str]) -> ValueError:
    """The error for a column that is missing."""
    found = ", ".join(repr(column[:SHOWN]) for column in header[:SHOWN])
    return cannot_read(path, f"it has no column {name[:SHOWN]!r}, found {found}")
