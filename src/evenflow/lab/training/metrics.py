"""metrics.csv: its format, and the log that averages updates into its rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from .run_writer import RunWriter

COLUMNS = ("step", "loss", "gradient_norm", "lr", "valid_loss", "valid_metric", "seconds")
HEADER = ",".join(COLUMNS)
NUMBER = r"-?(\d+(\.\d*)?([eE][+-]?\d+)?|inf|nan)"
ROW = re.compile(rf"\d+(,({NUMBER})?){{{len(COLUMNS) - 1}}}", re.ASCII)
NOISE = 0.05  # share by which the mean losses of two rows may differ without a meaning

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
    """The step of a row."""
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


def worsened(table: Metrics) -> tuple[float, float] | None:
    """The first and the last mean training loss of a run if the last is larger by more than `NOISE`, else None."""
    losses = table["loss"][np.isfinite(table["loss"])]
    return (float(losses[0]), float(losses[-1])) if len(losses) and losses[-1] > (1 + NOISE) * losses[0] else None


class MetricsLog:
    """The rows of a run. Loss and gradient norm are summed on the device, without a wait, and read for each row.

    Args:
        device: where the updates run.
        writer: of the run folder; None keeps the rows in memory.

    Attributes:
        sums: of the loss and of the gradient norm since the last row.
        since: the number of updates in the sums.
        lines: the rows so far, as text.
    """

    def __init__(self, device: torch.device, writer: RunWriter | None) -> None:
        self.sums = [torch.zeros((), device=device) for _ in range(2)]
        self.since = 0
        self.lines: list[str] = []
        self._writer = writer

    def mean(self) -> Tensor:
        """Mean loss and mean gradient norm since the last row; clears the sums."""
        mean = torch.stack(self.sums) / self.since
        self._reset(0, (0.0, 0.0))
        return mean

    def add(self, row: Mapping[str, float | None]) -> None:
        """Write a row."""
        self.lines.append(to_line(row))
        if self._writer is not None:
            self._writer.append(self.lines[-1])

    def state(self) -> dict[str, Any]:
        """The sums, for a checkpoint between two rows; empty for a checkpoint at a row."""
        return {"since": self.since, "sums": torch.stack(self.sums).tolist()} if self.since else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the sums of a checkpoint."""
        self._reset(state.get("since", 0), state.get("sums", (0.0, 0.0)))

    def _reset(self, since: int, sums: Any) -> None:
        self.since = since
        for total, value in zip(self.sums, sums, strict=True):
            total.fill_(value)
