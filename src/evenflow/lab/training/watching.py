"""A progress bar over runs that do not show one themselves: their folders say how far they are."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import metrics
from .progress import REFRESH, ProgressBar
from .run_folder import METRICS

TAIL = 400  # bytes at the end of metrics.csv, in which there is at least one whole row


@contextmanager
def watched(bar: ProgressBar, made: int, folders: Sequence[Path], note: str, shown: bool) -> Iterator[None]:
    """Move the bar while the block trains the runs in `folders`.

    Args:
        made: updates of all other runs; those of these are added to it.
        note: said beside the bar.
        shown: False does nothing, and so does a standard error that is no terminal.
    """
    if not shown or not sys.stderr.isatty():
        yield
        return
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(REFRESH):
            bar.update(made + sum(step_of_run(folder) for folder in folders), note)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def step_of_run(folder: Path) -> int:
    """The step of the last whole row of a run's metrics, 0 before there is one."""
    try:
        with open(folder / METRICS, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().decode().split("\n")[1:-1]  # the first is the header or cut, the last is empty or cut
        return metrics.step_of(lines[-1]) if lines else 0
    except (OSError, ValueError):  # what is no row is complained about where the run is read
        return 0
