"""A limit on the time that runs may take, after which they are left interrupted."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

# Where a run may be stopped: among its updates, with its folder open and someone to note the interruption and close it.
LOOPS = (("evenflow.training.loop", "run"), ("evenflow.training.population", "_walk"))
WAIT = 0.02  # seconds until it looks again for such a place
AGAIN = 5.0  # seconds until it rings again: an exception inside a destructor or a recording is lost


class TimeUp(KeyboardInterrupt):
    """The time is over. Like Ctrl-C it leaves a run interrupted, to be resumed."""


@contextmanager
def alarm(seconds: float | None, since: float | None = None) -> Iterator[Callable[[], None]]:
    """Raise `TimeUp` in the run that trains inside the block after so many seconds; None sets no limit.

    They count from `since`, a reading of `time.monotonic`, or from now. What the block gets is a function that raises
    it if the time is over, to call between two runs: outside of the main thread, and where the system has no alarm,
    nothing else does.
    """
    if seconds is not None and not (isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"seconds must be a number above 0, got {seconds!r}")
    now = time.monotonic()
    end = math.inf if seconds is None else (now if since is None else since) + seconds

    def check() -> None:
        if time.monotonic() >= end:
            raise TimeUp

    def ring(number: int, frame: FrameType | None) -> None:
        if _training(frame) and not _elsewhere(frame):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            raise TimeUp
        signal.setitimer(signal.ITIMER_REAL, WAIT)

    rings = seconds is not None and hasattr(signal, "setitimer")
    if not rings or threading.current_thread() is not threading.main_thread():
        yield check
        return
    gradients = torch.is_grad_enabled()
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(end - now, WAIT))
    try:
        yield check
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        torch.set_grad_enabled(gradients)


def _elsewhere(frame: FrameType | None) -> bool:
    """Whether the frame is torch's own: stopped while it enters `no_grad`, torch would never leave it."""
    return frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "contextlib")


def _training(frame: FrameType | None) -> bool:
    """Whether the frame lies inside of a run's loop."""
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in LOOPS:
            return True
        frame = frame.f_back
    return False
