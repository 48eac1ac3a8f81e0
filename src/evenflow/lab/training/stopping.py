"""What asks a run to stop between two updates: a limit on its time, Ctrl-C, or the system's request to end.

Between two updates there is nothing half done, so that a run can save where it stands and lose nothing.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# What Python does with these signals unless told otherwise; who was told otherwise keeps what he has.
USUAL: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
SAID = b"\nevenflow: stopping after this update; Ctrl-C again stops at once\n"

_limits = threading.local()  # `end`: when the time of this thread's runs is over


class TimeUp(KeyboardInterrupt):
    """The time is over. Like Ctrl-C it leaves a run interrupted, to be resumed."""


class Ended(KeyboardInterrupt):
    """The system has asked the process to end (SIGTERM), as schedulers do some time before they kill."""


class _Heard:
    """What the main thread has heard in its run, and what waits for the update under way."""

    listening = False
    request: type[KeyboardInterrupt] | None = None


def wanted() -> KeyboardInterrupt | None:
    """What to raise where a run is asked to stop. Cheap enough for every update."""
    if _Heard.request is not None and _Heard.listening and _in_main_thread():
        return _Heard.request()
    return TimeUp() if time.monotonic() >= _end() else None


def agreed(fabric: Fabric, meeting: bool) -> KeyboardInterrupt | None:
    """`wanted`; of several processes, each with its clock, the first decides for all, and only where they meet."""
    if fabric.world_size == 1:
        return wanted()
    return fabric.broadcast(wanted()) if meeting else None


def heed(fabric: Fabric | None = None) -> None:
    """Raise what is wanted, or agreed, where nothing has to be saved first."""
    if (reason := wanted() if fabric is None else agreed(fabric, meeting=True)) is not None:
        raise reason


@contextmanager
def limited(seconds: float | None, since: float | None = None) -> Iterator[None]:
    """Runs inside the block end by `TimeUp` after the update in which so many seconds are over, and none begins then.

    They count from `since`, a reading of `time.monotonic`, or from now; None sets no limit.
    """
    if seconds is not None and not (isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"seconds must be a number above 0, got {seconds!r}")
    before = _end()
    if seconds is not None:
        _limits.end = min(before, (time.monotonic() if since is None else since) + seconds)
    try:
        yield
    finally:
        _limits.end = before


@contextmanager
def attentive() -> Iterator[None]:
    """Around a run that asks `wanted`: Ctrl-C and a request to end wait for it, and a second Ctrl-C does not.

    Whatever the run ends by, they come out of the block.
    """
    if not _in_main_thread() or _Heard.listening:
        yield
        return
    taken = [number for number, usual in USUAL.items() if signal.getsignal(number) == usual]
    process = os.getpid()

    def give_back() -> None:
        for number in taken:
            if signal.getsignal(number) is hear:  # else somebody has set another meanwhile
                signal.signal(number, USUAL[number])

    def hear(number: int, frame: FrameType | None) -> None:
        # A process forked meanwhile has this handler too, and no run to wait for.
        if os.getpid() != process or (number == signal.SIGINT and _Heard.request is not None):
            give_back()
            signal.raise_signal(number)
            return
        if number == signal.SIGINT and os.isatty(2):
            os.write(2, SAID)  # not by print, in the middle of which a signal may come
        _Heard.request = KeyboardInterrupt if number == signal.SIGINT else Ended

    _Heard.listening, _Heard.request = True, None
    for number in taken:
        signal.signal(number, hear)
    ending: type[BaseException] | None = None
    try:
        yield
    except BaseException as error:
        ending = type(error)
        raise
    finally:
        _Heard.listening = False
        give_back()
        if _Heard.request is not None and _Heard.request is not ending:  # it came after the last update
            raise _Heard.request


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _end() -> float:
    return getattr(_limits, "end", math.inf)
