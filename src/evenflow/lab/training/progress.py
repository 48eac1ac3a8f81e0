"""A progress bar for runs longer than two seconds, on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import metrics
from .run_folder import METRICS

PATIENCE = 2.0  # seconds before a bar appears
REFRESH = 0.25  # seconds between two drawings
TAIL = 400  # bytes at the end of metrics.csv, which hold at least one whole row


class ProgressBar:
    """Shows how far a run is. Draws nothing in the first two seconds, nor if standard error is not a terminal.

    Args:
        total: updates in all.
        start: updates already made.
        shown: False draws nothing.
    """

    def __init__(self, total: int, start: int = 0, shown: bool = True) -> None:
        self._total, self._start = total, start
        self._next = time.monotonic() + PATIENCE if shown and sys.stderr.isatty() else float("inf")
        self._bar: Any = None
        self._task: Any = None

    def update(self, step: int, note: str = "") -> None:
        """Show that `step` updates are made; cheap enough to call at every update."""
        if time.monotonic() < self._next:
            return
        if self._bar is None:
            self._open()
        self._bar.update(self._task, completed=step, note=note)
        self._bar.refresh()
        self._next = time.monotonic() + REFRESH

    def close(self) -> None:
        """Remove the bar."""
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


@contextmanager
def progress_watcher(bar: ProgressBar, base: int, folders: Sequence[Path], note: str, shown: bool) -> Iterator[None]:
    """Update the bar, in a thread, from the run folders that the block writes to.

    Args:
        base: updates of all other runs, added to those of these.
        note: text beside the bar.
        shown: False does nothing; so does a standard error that is not a terminal.
    """
    if not shown or not sys.stderr.isatty():
        yield
        return
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(REFRESH):
            bar.update(base + sum(last_step(folder) for folder in folders), note)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def last_step(folder: Path) -> int:
    """The step of the last whole row of a run's metrics, 0 before there is one."""
    try:
        with open(folder / METRICS, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().decode().split("\n")[1:-1]  # the first is the header or cut, the last is empty or cut
        return metrics.step_of(lines[-1]) if lines else 0
    except (OSError, ValueError):  # a damaged row is reported where the run is read
        return 0
