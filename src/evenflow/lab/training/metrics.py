"""metrics.csv: one row of numbers every few updates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

COLUMNS = ("step", "loss", "gradient_norm", "lr", "valid_loss", "valid_metric", "seconds")
HEADER = ",".join(COLUMNS)
NUMBER = r"-?(\d+(\.\d*)?([eE][+-]?\d+)?|inf|nan)"
ROW = re.compile(rf"\d+(,({NUMBER})?){{{len(COLUMNS) - 1}}}", re.ASCII)

Metrics = dict[str, np.ndarray]


def to_line(row: Mapping[str, float | None]) -> str:
    """A row as text; a number that was not measured is an empty field. Nine digits hold a float32 exactly."""
    values = (row.get(column) for column in COLUMNS)
    return ",".join("" if value is None else format(value, ".9g") for value in values)


def complete_lines(content: bytes) -> list[str]:
    """The rows of a metrics file; a last row without its line end was cut off by a crash and is left out.

    A ValueError names the first line that is not the header or a row.
    """
    lines = [line.decode("ascii", "backslashreplace") for line in content.replace(b"\r\n", b"\n").split(b"\n")][:-1]
    if lines and lines[0] != HEADER:
        raise ValueError(f"line 1 must be {HEADER!r}, got {lines[0][:80]!r}")
    for number, line in enumerate(lines[1:], 2):
        if not ROW.fullmatch(line):
            raise ValueError(f"line {number} must hold a step and {len(COLUMNS) - 1} numbers, got {line[:80]!r}")
    return lines[1:]


def step_of(line: str) -> int:
    """The step a row belongs to."""
    return int(line.split(",", 1)[0])


def to_arrays(lines: Iterable[str]) -> Metrics:
    """One array for each column: `step` whole numbers, the rest float64 with nan where nothing was measured."""
    rows = [line.split(",") for line in lines]
    table: dict[str, Any] = {
        name: np.array([float(row[i]) if row[i] else np.nan for row in rows], dtype=np.float64)
        for i, name in enumerate(COLUMNS)
    }
    table["step"] = table["step"].astype(np.int64)
    return table
