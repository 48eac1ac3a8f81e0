"""Turn the cells of a table, text or numbers, into numbers: categories, times, missing values."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import numpy as np

from evenflow.models.data_column import DataColumn

MISSING = frozenset(("", "?", "na", "n/a", "nan", "nat", "null", "none", "<na>"))  # in lower case
LARGEST = float(np.finfo(np.float32).max)  # larger numbers would become infinite as float32
LATEST = 1e30  # of numbers that are times: the time between two is a float32
SHOWN = 20  # characters of a cell, and words of a list, in a message
EXPECTED = {"number": "a number", "timestamp": "a time such as 2024-01-31 12:00:00"}
TIME_UNITS = tuple(EXPECTED)

Cells = Sequence[Any] | np.ndarray


class BadCell(ValueError):
    """A cell that cannot be used.

    Attributes:
        row: its row.
        problem: what is wrong with it, as the rest of a sentence.
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(row, problem)
        self.row, self.problem = row, problem


def is_missing(cell: Any) -> bool:
    """Whether a cell is empty, or one of the words that tables hold in place of a value."""
    return cell is None or (isinstance(cell, float) and cell != cell) or str(cell).strip().lower() in MISSING


def shown(cell: Any) -> str:
    """A cell in a message."""
    return repr(str(cell).strip()[:SHOWN])


def column_values(column: DataColumn, cells: Cells) -> np.ndarray:
    """The cells of an input ``(S,)`` float64: numbers, or positions of categories; nan where one is missing.

    Raises:
        BadCell: a cell is missing and the column has no way to fill it, or is no number or no known category.
    """
    if column.kind != "category":
        return number_values(cells, column.missing is not None)
    places = {str(word): place for place, word in enumerate(column.categories)}
    values = np.empty(len(cells))
    for row, cell in enumerate(cells):
        place = places.get(str(cell).strip())
        if place is not None:
            values[row] = place
        elif is_missing(cell) and column.missing is not None:
            values[row] = np.nan
        elif is_missing(cell):
            raise BadCell(row, "has a missing value")
        else:
            known = ", ".join(map(str, column.categories[:SHOWN])) + (", ..." if len(places) > SHOWN else "")
            raise BadCell(row, f"holds {shown(cell)}, and the values in training were {known}")
    return values


def number_values(cells: Cells, missing: bool) -> np.ndarray:
    """Cells as numbers that fit a float32 ``(S,)``; missing ones become nan if that is allowed."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "mM":
        raise BadCell(0, f"holds a time, {cells[0] if len(cells) else ''}, which is not a number")
    try:
        values = np.asarray(cells, np.float64)
        if (np.abs(values) <= LARGEST).all() or (missing and (np.isnan(values) | (np.abs(values) <= LARGEST)).all()):
            return values
    except (ValueError, TypeError):
        pass
    values = np.empty(len(cells))
    for row, cell in enumerate(cells):
        if is_missing(cell):
            if not missing:
                raise BadCell(row, "has a missing value")
            values[row] = np.nan
            continue
        try:
            values[row] = float(cell)
        except (ValueError, TypeError):
            raise BadCell(row, f"holds {shown(cell)}, which is not a number") from None
        if not abs(values[row]) <= LARGEST:
            raise BadCell(row, f"holds {shown(cell)}, and only finite float32 numbers will do")
    return values


def time_values(cells: Cells, unit: str | None = None) -> tuple[np.ndarray, str]:
    """Times as numbers ``(S,)`` float64, and whether they are a "number" or a "timestamp", then in seconds since 1970.

    Args:
        cells: numbers, datetimes, or text in the form of ISO 8601, such as 2024-01-31 12:00:00, then in
            UTC, or 2024-01-31T12:00+01:00.
        unit: "number" or "timestamp" if it is known. Default: what the first cell looks like.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
        if np.isnat(cells).any():
            raise BadCell(int(np.isnat(cells).argmax()), "has a missing value")
        return _of_unit(cells.astype("datetime64[us]").astype(np.int64) / 1e6, "timestamp", unit, cells)
    numbers = None
    with suppress(ValueError, TypeError):
        numbers = np.asarray(cells, np.float64)
    if numbers is not None and (np.abs(numbers) < LATEST).all():
        return _of_unit(numbers, "number", unit, cells)
    values = np.empty(len(cells))
    unit = unit or ("number" if is_number(str(cells[0])) else "timestamp")
    for row, cell in enumerate(cells):
        if is_missing(cell):
            raise BadCell(row, "has a missing value")
        try:
            if unit == "number":  # one of the cells is not
                if not abs(float(cell)) < LATEST:
                    raise ValueError
                continue
            moment = cell if isinstance(cell, datetime) else datetime.fromisoformat(str(cell).strip())
        except ValueError:
            raise BadCell(row, f"holds {shown(cell)}, where {EXPECTED[unit]} is expected") from None
        values[row] = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return _of_unit(values, "timestamp", unit, cells)


def is_number(token: str) -> bool:
    """Whether a text is a number."""
    try:
        float(token)
    except ValueError:
        return False
    return True


def _of_unit(values: np.ndarray, own: str, unit: str | None, cells: Cells) -> tuple[np.ndarray, str]:
    if unit not in (None, own) and len(values):
        raise BadCell(0, f"holds {shown(cells[0])}, where {EXPECTED[str(unit)]} is expected")
    return values, own


def grouped(ids: Cells | None, steps: int, times: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The order that sorts the rows of a table by sequence, in the order of first appearance, and the lengths.

    Args:
        ids: the sequence of each row; None for one long series.
        steps: the number of rows.
        times: the time of each row, by which the rows of a sequence are sorted. Default: the order of the table.

    Raises:
        BadCell: rows that are out of order have the same time, so they are probably not of one sequence.
    """
    if ids is None:
        codes, lengths = np.zeros(steps, np.int64), np.array([steps] if steps else [], np.int64)
    else:
        places: dict[Any, int] = {}
        codes = np.fromiter((places.setdefault(identity, len(places)) for identity in ids), np.int64, steps)
        lengths = np.bincount(codes)
    order = np.argsort(codes, kind="stable")
    if times is not None:
        in_time = np.lexsort((times, codes))
        if (in_time != order).any():
            twice = (np.diff(times[in_time]) == 0) & (np.diff(codes[in_time]) == 0)
            if twice.any():
                raise BadCell(
                    int(in_time[1:][twice].min()),
                    "goes back to a time that its sequence has already: name the column that tells sequences apart, or "
                    "ignore this one",
                )
        order = in_time
    return order, lengths


def cut_lengths(lengths: np.ndarray, length: int | None) -> np.ndarray:
    """The lengths of the pieces of `length` steps that sequences are cut into; None leaves them whole."""
    if length is None:
        return lengths
    pieces = [min(length, whole - first) for whole in lengths.tolist() for first in range(0, whole, length)]
    return np.array(pieces, np.int64)


def time_gaps(times: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The time since the step before ``(S,)``, 0 where a sequence begins; `times` are in the order of `grouped`."""
    gaps = np.diff(times, prepend=times[:1])
    gaps[(np.cumsum(lengths) - lengths)[lengths > 0]] = 0
    return gaps


def check_time_step(step: float, expected: float | None) -> str | None:
    """What is wrong if steps are so far apart that the times must be in another unit than in training; else None."""
    if expected is None or not step > 0 or 1 / 20 < step / expected < 20:
        return None
    return f"has steps {step:g} apart, and in training they were {expected:g} apart: the unit of time must be the same"
