"""A progress bar for downloads longer than two seconds, on a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any

PATIENCE = 2.0  # seconds before a bar appears


class DownloadBar:
    """Shows how much of a file is here, with the four verbs that pooch asks of a bar.

    Args:
        name: of the file.
        shown: False keeps it quiet. Nothing is drawn where standard error is not a terminal either.
    """

    def __init__(self, name: str, shown: bool = True) -> None:
        self.total = 0  # bytes; pooch sets it when the server has said how many
        self._name, self._done = name, 0
        self._bar: Any = None
        self._task: Any = None
        self._opens = time.monotonic() + PATIENCE if shown and sys.stderr.isatty() else float("inf")

    def update(self, size: int) -> None:
        """Say that `size` more bytes are here."""
        self._done += size
        if self._bar is None and time.monotonic() >= self._opens:
            self._open()
        if self._bar is not None:
            self._bar.update(self._task, completed=min(self._done, self.total or self._done))

    def reset(self) -> None:
        """Start again at no bytes."""
        self._done = 0

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._opens = float("inf")

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(self._name, total=self.total or None)
