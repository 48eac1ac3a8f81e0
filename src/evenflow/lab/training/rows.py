"""The rows of a run: sums over the updates since the last one, and a line of metrics.csv made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from . import metrics
from .run_folder import RunWriter


class Rows:
    """Loss and gradient norm are summed on the device, where nothing waits for them, and read when a row is written.

    Args:
        device: where the updates run.
        writer: of the run's folder.
        events: gets every row besides.

    Attributes:
        sums: of the loss and of the gradient norm, since the last row.
        since: the updates in them.
        lines: of metrics.csv so far.
    """

    def __init__(
        self, device: torch.device, writer: RunWriter | None, events: Callable[[Mapping[str, Any]], None] | None
    ) -> None:
        self.sums = [torch.zeros((), device=device) for _ in range(2)]
        self.since = 0
        self.lines: list[str] = []
        self._writer, self._events = writer, events

    def mean(self) -> Tensor:
        """Mean loss and mean gradient norm since the last row; the next ones begin."""
        found = torch.stack(self.sums) / self.since
        self._begin(0, (0.0, 0.0))
        return found

    def add(self, row: Mapping[str, float | None]) -> None:
        self.lines.append(metrics.to_line(row))
        if self._writer is not None:
            self._writer.append(self.lines[-1])
        if self._events is not None:
            self._events(row)

    def state(self) -> dict[str, Any]:
        """What a checkpoint between two rows holds, so that the next row is of all its updates; else nothing."""
        return {"since": self.since, "sums": torch.stack(self.sums).tolist()} if self.since else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._begin(state.get("since", 0), state.get("sums", (0.0, 0.0)))

    def _begin(self, since: int, sums: Any) -> None:
        self.since = since
        for total, value in zip(self.sums, sums, strict=True):
            total.fill_(value)
