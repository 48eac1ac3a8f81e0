"""Parse tables of numbers in text files; errors name the line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .guarded import FilePath, cannot_read

SHOWN = 20  # characters of a token that an error message shows
LARGEST = float(np.finfo(np.float32).max)  # larger numbers would become infinite as float32


def number_table(path: FilePath, text: str) -> tuple[np.ndarray, list[int]]:
    """Parse rows of numbers, separated by commas if there are any, else by blanks or tabs. Empty lines are ignored.

    Args:
        path: the file that the text comes from, for error messages.
        text: the whole file.

    Returns:
        The table ``(N, C)`` float64, and the line number (from 1) of each row.

    Raises:
        ValueError: there are no rows, or rows differ in length, or a value is not a number that fits a float32.
    """
    rows = [(line, row.strip()) for line, row in enumerate(text.split("\n"), 1) if row.strip()]
    return number_rows(path, rows, "," if "," in text else None), [line for line, _ in rows]


def number_rows(path: FilePath, rows: Sequence[tuple[int, str]], separator: str | None) -> np.ndarray:
    """Parse rows, each with its line number, as `number_table` does."""
    if not rows:
        raise cannot_read(path, "there are no rows in it")
    try:
        table = np.loadtxt([row for _, row in rows], delimiter=separator, comments=None, ndmin=2)
        valid = bool((np.abs(table) <= LARGEST).all()) and len(table) == len(rows)
    except Exception:  # the loop below finds the row
        valid = False
    if not valid:
        width = len(rows[0][1].split(separator))
        table = np.array([numbers(path, line, row.split(separator), width) for line, row in rows])
    return table


def numbers(path: FilePath, line: int, tokens: Sequence[str], width: int) -> list[float]:
    """Parse one row, which must have `width` numbers."""
    if len(tokens) != width:
        raise cannot_read(path, f"line {line} has {len(tokens)} values, the first row has {width}")
    return [number(path, f"line {line}", token) for token in tokens]


def number(path: FilePath, place: str, token: str) -> float:
    """Parse one number that fits a float32; `place`, such as "line 3", is for error messages."""
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
