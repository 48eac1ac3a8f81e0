"""A progress bar for runs longer than two seconds, on a terminal or in a notebook."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import metrics
from .run_folder import METRICS

PATIENCE = 2.0  # seconds before a bar appears
REFRESH = 0.25  # seconds between two drawings
TAIL = 400  # bytes at the end of metrics.csv, which hold at least one whole row


class ProgressBar:
    """Shows how far a run is, on a terminal or in a notebook. Draws nothing in the first two seconds, nor elsewhere.

    Args:
        total: updates in all.
        start: updates already made.
        shown: False draws nothing.
    """

    def __init__(self, total: int, start: int = 0, shown: bool = True) -> None:
        self._total, self._start = total, start
        self._notebook = in_notebook()
        self._next = time.monotonic() + PATIENCE if shown and can_show() else float("inf")
        self._bar: Any = None
        self._task: Any = None

    def update(self, step: int, note: str = "") -> None:
        """Show that `step` updates are made; cheap enough to call at every update."""
        if time.monotonic() < self._next:
            return
        if self._notebook:
            self._show_html(progress_html(step, self._total, note))
            self._next = time.monotonic() + REFRESH
            return
        if self._bar is None:
            self._open()
        self._bar.update(self._task, completed=step, total=self._total, note=note)
        self._bar.refresh()
        self._next = time.monotonic() + REFRESH

    def extend(self, updates: int) -> None:
        """Add to the updates in all."""
        self._total += updates

    def close(self) -> None:
        """Remove the bar."""
        if self._notebook and self._bar is not None:
            self._show_html("")
            self._bar = None
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._next = float("inf")

    def _show_html(self, text: str) -> None:
        """Show a line in the notebook, in place of the one before."""
        from IPython.display import HTML, display

        if self._bar is None:
            self._bar = display(HTML(text), display_id=True)
        else:
            self._bar.update(HTML(text))

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


def in_notebook() -> bool:
    """Whether the process is the kernel of a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and type(get_shell()).__name__ == "ZMQInteractiveShell"


def progress_html(step: int, total: int, note: str) -> str:
    """A line with a bar, for a notebook."""
    return f'<progress value="{step}" max="{total}"></progress> {step:,}/{total:,} {html.escape(note)}'


def can_show() -> bool:
    """Whether a bar would be seen: in a notebook or on a terminal."""
    return in_notebook() or sys.stderr.isatty()


@contextmanager
def progress_watcher(
    bar: ProgressBar, base: int, folders: Sequence[Path], note: Callable[[], str], shown: bool
) -> Iterator[None]:
    """Update the bar, in a thread, from the run folders that the block writes to.

    Args:
        base: updates of all other runs, added to those of these.
        folders: read anew for every drawing, so that the block may add some.
        note: returns the text beside the bar.
        shown: False does nothing; so does a process without a terminal or a notebook.
    """
    if not shown or not can_show():
        yield
        return
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(REFRESH):
            bar.update(base + sum(last_step(folder) for folder in list(folders)), note())

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
