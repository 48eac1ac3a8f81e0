"""Tables of numbers in text files; a row that will not do is named by its line."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from .guarded import cannot_read

SHOWN = 20  # characters of a token that a sentence repeats
LARGEST = float(np.finfo(np.float32).max)  # what is read becomes float32, where more would be infinite


def number_table(path: str | os.PathLike[str], text: str) -> tuple[np.ndarray, list[int]]:
    """Rows of numbers, separated by commas where there are any and by blanks or tabs otherwise.

    Empty lines are left out.

    Args:
        path: where the text came from, for the sentences.
        text: the whole file.

    Returns:
        The table ``(N, C)`` float64, and the line (from 1) of each row.

    Raises:
        ValueError: there are no rows, or one is ragged, or holds something else than a number that fits a float32.
    """
    rows = [(line, row.strip()) for line, row in enumerate(text.split("\n"), 1) if row.strip()]
    return number_rows(path, rows, "," if "," in text else None), [line for line, _ in rows]


def number_rows(path: str | os.PathLike[str], rows: Sequence[tuple[int, str]], separator: str | None) -> np.ndarray:
    """The numbers ``(N, C)`` float64 of rows given with the lines they stand in, as `number_table`."""
    if not rows:
        raise cannot_read(path, "there are no rows in it")
    try:
        table = np.loadtxt([row for _, row in rows], delimiter=separator, comments=None, ndmin=2)
        quick = bool((np.abs(table) <= LARGEST).all()) and len(table) == len(rows)
    except Exception:  # whatever it is, the slow way finds the row
        quick = False
    if not quick:
        width = len(rows[0][1].split(separator))
        table = np.array([numbers(path, line, row.split(separator), width) for line, row in rows])
    return table


def numbers(path: str | os.PathLike[str], line: int, tokens: Sequence[str], width: int) -> list[float]:
    """The numbers of one row, of which there must be `width`."""
    if len(tokens) != width:
        raise cannot_read(path, f"line {line} has {len(tokens)} values, the first row has {width}")
    return [number(path, f"line {line}", token) for token in tokens]


def number(path: str | os.PathLike[str], place: str, token: str) -> float:
    """One number that fits a float32, from a `place` such as "line 3"."""
    shown = token.strip()[:SHOWN]
    if shown in ("", "?"):
        raise cannot_read(path, f"{place} has a missing value")
    try:
        value = float(token)
    except ValueError:
        raise cannot_read(path, f"{place} holds {shown!r}, which is not a number") from None
    if not abs(value) <= LARGEST:
        raise cannot_read(path, f"{place} holds {shown!r}, and only finite float32 numbers will do")
    return value
