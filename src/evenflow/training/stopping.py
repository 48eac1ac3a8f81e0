"""What asks a run to stop between two updates: a limit on its time, Ctrl-C, or the system's request to end.

Between two updates there is nothing half done, so that a run can save where it stands and lose nothing.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# What Python does with these signals unless told otherwise; who was told otherwise keeps what he has.
USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

_limits = threading.local()  # `end`: when the time of this thread's runs is over


class TimeUp(KeyboardInterrupt):
    """The time is over. Like Ctrl-C it leaves a run interrupted, to be resumed."""


class _Heard:
    """The signal that came in the run under way, and waits for its update to end."""

    signal: int | None = None


def wanted() -> KeyboardInterrupt | None:
    """What to raise where a run is asked to stop. Cheap enough for every update."""
    if _Heard.signal is not None and threading.current_thread() is threading.main_thread():
        return KeyboardInterrupt()
    return TimeUp() if time.monotonic() >= _end() else None


@contextmanager
def limited(seconds: float | None, since: float | None = None) -> Iterator[Callable[[], None]]:
    """Runs inside the block end by `TimeUp` after the update in which so many seconds are over; None sets no limit.

    They count from `since`, a reading of `time.monotonic`, or from now. What the block gets is a function that raises
    it if the time is over, to call between two runs.
    """
    if seconds is not None and not (isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"seconds must be a number above 0, got {seconds!r}")
    end = math.inf if seconds is None else (time.monotonic() if since is None else since) + seconds
    before = _end()

    def check() -> None:
        if time.monotonic() >= end:
            raise TimeUp

    _limits.end = min(before, end)
    try:
        yield check
    finally:
        _limits.end = before


@contextmanager
def attentive() -> Iterator[None]:
    """Around a run that asks `wanted`: Ctrl-C and a request to end wait for its update, and a second one does not.

    A request to end then ends the process, as it would have done at once.
    """
    if threading.current_thread() is not threading.main_thread() or _Heard.signal is not None:
        yield
        return
    taken = {number: usual for number, usual in USUAL.items() if signal.getsignal(number) == usual}

    def hear(number: int, frame: FrameType | None) -> None:
        if _Heard.signal is not None:
            give_back()
            signal.raise_signal(number)
        _Heard.signal = number

    def give_back() -> None:
        for number, usual in taken.items():
            signal.signal(number, usual)

    for number in taken:
        signal.signal(number, hear)
    try:
        yield
    finally:
        give_back()
        heard, _Heard.signal = _Heard.signal, None
        if heard == signal.SIGTERM:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os.kill(os.getpid(), signal.SIGTERM)
        elif heard is not None and not isinstance(sys.exc_info()[1], KeyboardInterrupt):
            raise KeyboardInterrupt  # it came after the last update, or the run has ended otherwise


def _end() -> float:
    return getattr(_limits, "end", math.inf)
