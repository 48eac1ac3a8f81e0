"""A progress bar for runs longer than two seconds, on a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any

PATIENCE = 2.0  # seconds before a bar appears
REFRESH = 0.25  # seconds between two drawings


class ProgressBar:
    """Shows how far a run is. Nothing is drawn in the first two seconds, nor where standard error is not a terminal.

    Args:
        total: updates in all.
        start: updates already made.
        shown: False keeps it quiet.
    """

    def __init__(self, total: int, start: int = 0, shown: bool = True) -> None:
        self._total, self._start = total, start
        self._next = time.monotonic() + PATIENCE if shown and sys.stderr.isatty() else float("inf")
        self._bar: Any = None
        self._task: Any = None

    def update(self, step: int, note: str = "") -> None:
        """Say that `step` updates are made; cheap enough to call at every update."""
        if time.monotonic() < self._next:
            return
        if self._bar is None:
            self._open()
        self._bar.update(self._task, completed=step, note=note)
        self._bar.refresh()
        self._next = time.monotonic() + REFRESH

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._next = float("inf")

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("training", total=self._total, completed=self._start, note="")
