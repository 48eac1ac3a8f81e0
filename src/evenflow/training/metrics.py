"""metrics.csv: one row of numbers every few updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

COLUMNS = ("step", "loss", "gradient_norm", "rate", "valid_loss", "valid_metric", "seconds")
HEADER = ",".join(COLUMNS)

Metrics = dict[str, np.ndarray]


def to_line(row: Mapping[str, float | None]) -> str:
    """A row as text; a number that was not measured is an empty field. Nine digits hold a float32 exactly."""
    values = (row.get(column) for column in COLUMNS)
    return ",".join("" if value is None else format(value, ".9g") for value in values)


def complete_lines(text: str) -> list[str]:
    """The rows of a metrics file; a last row without its line end was cut off by a crash and is left out."""
    lines = text.split("\n")[:-1]
    if lines and lines[0] != HEADER:
        raise ValueError(f"metrics must begin with the line {HEADER!r}, got {lines[0][:80]!r}")
    return lines[1:]


def step_of(line: str) -> int:
    """The step a row belongs to."""
    return int(line.split(",", 1)[0])


def to_arrays(lines: Iterable[str]) -> Metrics:
    """One array for each column: `step` whole numbers, the rest float64 with nan where nothing was measured."""
    rows = [line.split(",") for line in lines]
    if any(len(row) != len(COLUMNS) for row in rows):
        raise ValueError(f"every row of the metrics must have {len(COLUMNS)} fields")
    table: dict[str, Any] = {
        name: np.array([float(row[i]) if row[i] else np.nan for row in rows], dtype=np.float64)
        for i, name in enumerate(COLUMNS)
    }
    table["step"] = table["step"].astype(np.int64)
    return table
