"""A user's sequences from a CSV file, one row a step."""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Iterator, Sequence

import numpy as np

from .guarded import cannot_read, read_text
from .number_table import LARGEST, SHOWN, number
from .own_sequences import LIMIT, WHOLE, OwnSequences, check_choices, classes

ROWS = 1 << 9  # turned into numbers at a time; with more of them Python's garbage collector takes most of the time
SEQUENCE, TARGET, TIME = "sequence", "target", "time"


def read_csv(
    path: str | os.PathLike[str],
    sequence: str = SEQUENCE,
    target: str = TARGET,
    kind: str | None = None,
    readout: str | None = None,
) -> OwnSequences:
    """Sequences from a CSV file whose first line names the columns; each further line is one step.

    - ``sequence``: which sequence a step belongs to, any text. Steps keep the order of the file, and those of one
      sequence need not follow each other. Without this column the file is one long series.
    - ``target``: what is to be learned. The same in all steps of each sequence, it is learned after the last step
      (readout "last"); otherwise, and in one long series, at every step (readout "every").
    - ``time``: left out. The order of the file is the order of time.
    - every other column is an input and holds numbers.

    Targets that are whole numbers or words are classes; if one has a decimal point or an exponent, all are numbers to
    regress on; without a target column the inputs of the next step are to be predicted. Columns are separated by
    commas, or by semicolons or tabs if the first line has no comma.

    Args:
        path: a UTF-8 file, packed if its name ends in ``.gz``.
        sequence: name of the column of sequences.
        target: name of the column of targets; several, separated by commas, for a regression on several numbers.
        kind: "classification", "regression" or "next" instead of what the targets look like; for "next" target columns
            are left out.
        readout: "last" or "every" instead of what the targets look like.

    Raises:
        ValueError: the file is missing or damaged, or a row will not do, named by its line.
    """
    check_choices(kind, readout)
    lines, names, parts = _parts(path, sequence, target, kind)
    ids, tokens, table = parts
    order, lengths = _grouped(path, ids, lines, len(table))
    cuts = np.cumsum(lengths)[:-1]
    inputs = np.split(table[order], cuts)
    if not tokens:
        short = int(lengths.argmin())
        if lengths[short] < 2:
            row = lines[int(order[int(lengths[:short].sum())])]
            raise cannot_read(path, f"the sequence of line {row} has one step, and predicting the next needs two")
        return OwnSequences(inputs, None, "next", "every", names, (), len(names))
    kind = kind or ("classification" if len(tokens) == 1 and _are_classes(tokens[0]) else "regression")
    if kind == "classification":
        if len(tokens) > 1:
            raise cannot_read(path, f"classification needs one target column, got {len(tokens)}")
        labels, positions = classes(path, tokens[0])
        values, outputs = np.array([positions[token] for token in tokens[0]], np.int64), len(labels)
    else:
        columns = [_numbers(path, name, column, lines) for name, column in zip(_split(target), tokens, strict=True)]
        labels, values, outputs = (), np.stack(columns, 1).astype(np.float32), len(tokens)
    values = values[order]
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    changes = (values != values[starts]).reshape(len(values), -1).any(1)
    readout = readout or ("every" if ids is None or changes.any() else "last")
    if readout == "every":
        return OwnSequences(inputs, np.split(values, cuts), kind, readout, names, labels, outputs)
    if changes.any():
        row = lines[int(order[int(changes.argmax())])]
        raise cannot_read(path, f"line {row} changes the target of its sequence, which for readout last has one")
    return OwnSequences(inputs, values[np.cumsum(lengths) - 1], kind, readout, names, labels, outputs)


Parts = tuple[list[str] | None, list[list[str]], np.ndarray]  # sequences, targets (not yet numbers), inputs (S, I)


def _parts(
    path: str | os.PathLike[str], sequence: str, target: str, kind: str | None
) -> tuple[list[int], tuple[str, ...], Parts]:
    """The line of each row, the names of the inputs, and the columns by what they are for."""
    text = read_text(path, LIMIT)
    rows = _rows(path, text)
    _, header = next(rows, (0, []))
    header = _header(path, header)
    if sequence not in header and sequence != SEQUENCE:
        raise cannot_read(path, _no_column(sequence, header))
    targets = _split(target)
    found = [name for name in targets if name in header]
    if len(found) < len(targets) and (found or target != TARGET or kind not in (None, "next")):
        raise cannot_read(path, _no_column(next(name for name in targets if name not in header), header))
    names = tuple(name for name in header if name not in (sequence, TIME, *targets))
    if not names:
        raise cannot_read(path, f"it has no input column, only {', '.join(map(repr, header))}")
    learned = [] if kind == "next" else found
    lines: list[int] = []
    ids: list[str] = []
    tokens: list[list[str]] = [[] for _ in learned]
    tables: list[np.ndarray] = []
    while chunk := list(itertools.islice(rows, ROWS)):
        here = [line for line, _ in chunk]
        columns = dict(zip(header, zip(*(row for _, row in chunk), strict=True), strict=True))
        tables.append(np.stack([_numbers(path, name, columns[name], here) for name in names], 1).astype(np.float32))
        ids += [identity.strip() for identity in columns.get(sequence, ())]
        for name, column in zip(learned, tokens, strict=True):
            column += _filled(path, name, columns[name], here)
        lines += here
    if not lines:
        raise cannot_read(path, "it has a line of names and no rows")
    return lines, names, (ids if sequence in header else None, tokens, np.concatenate(tables))


def _rows(path: str | os.PathLike[str], text: str) -> Iterator[tuple[int, list[str]]]:
    """Lines (from 1) and cells; rows that are not as long as the first are refused, empty ones left out."""
    start = text[:100_000].lstrip("\r\n").partition("\n")[0]
    separator = "," if "," in start else next((mark for mark in ";\t" if mark in start), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
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


def _header(path: str | os.PathLike[str], cells: Sequence[str]) -> list[str]:
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


def _grouped(
    path: str | os.PathLike[str], ids: list[str] | None, lines: list[int], steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """The order that brings the rows of each sequence together, and the sequences' lengths."""
    if ids is None:
        return np.arange(steps), np.array([steps])
    if "" in ids:
        raise cannot_read(path, f"line {lines[ids.index('')]} does not say to which sequence it belongs")
    places: dict[str, int] = {}
    codes = np.fromiter((places.setdefault(identity, len(places)) for identity in ids), np.int64, steps)
    return np.argsort(codes, kind="stable"), np.bincount(codes)


def _numbers(path: str | os.PathLike[str], name: str, tokens: Sequence[str], lines: Sequence[int]) -> np.ndarray:
    try:
        values = np.array(tokens, np.float64)
        if (np.abs(values) <= LARGEST).all():
            return values
    except ValueError:
        pass
    place = f", column {name[:SHOWN]!r},"
    return np.array([number(path, f"line {line}{place}", token) for line, token in zip(lines, tokens, strict=True)])


def _filled(path: str | os.PathLike[str], name: str, tokens: Sequence[str], lines: Sequence[int]) -> list[str]:
    stripped = [token.strip() for token in tokens]
    if "" in stripped:
        line = lines[stripped.index("")]
        raise cannot_read(path, f"line {line}, column {name[:SHOWN]!r}, has a missing value")
    return stripped


def _are_classes(tokens: Sequence[str]) -> bool:
    """Whether these are whole numbers or words; a decimal point or an exponent anywhere means numbers."""
    return all(WHOLE.fullmatch(token) or not _is_number(token) for token in set(tokens))


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


def _split(target: str) -> list[str]:
    return [name.strip() for name in target.split(",")]


def _no_column(name: str, header: Sequence[str]) -> str:
    return f"it has no column {name[:SHOWN]!r}, found {', '.join(repr(found[:SHOWN]) for found in header[:SHOWN])}"
