"""What ends a run before its last update: a time limit, Ctrl-C, SIGTERM, or a loss that is not a number.

The first three take effect between two updates. Nothing is half done then, so a run can save its state and lose
nothing.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any

from evenflow.checks import number

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Python's own handlers. A handler that a program has set instead stays.
DEFAULT_HANDLERS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
STOPPING = b"\nevenflow: stopping after this update; Ctrl-C again stops at once\n"
NON_FINITE = "infinite or not a number"  # in the message of a run that diverged


class TimeUp(KeyboardInterrupt):
    """The time limit is over. As after Ctrl-C, the run is interrupted and can be resumed."""


class Terminated(KeyboardInterrupt):
    """The system has asked the process to end (SIGTERM), as schedulers do some time before they kill a job."""


class NonFiniteLoss(RuntimeError):
    """The loss, the gradient or a weight became infinite or not a number.

    >>> try:
    ...     fit(model, task, steps=100, optimizer="sgd", lr=1e30, progress=False)
    ... except NonFiniteLoss:
    ...     print("diverged")
    diverged
    """

    @classmethod
    def of(cls, what: str, when: str, lr: float) -> NonFiniteLoss:
        """The error with its usual message."""
        return cls(f"the {what} became {NON_FINITE} {when}: try a smaller lr than {lr:g} or a clip_norm")


def diverged(status: Mapping[str, Any]) -> bool:
    """Whether the status of a run folder says that its run ended by `NonFiniteLoss`.

    A full disk also fails a run, but that run can be resumed.
    """
    return status.get("state") == "failed" and NON_FINITE in str(status.get("message", ""))


class SignalHandlers:
    """Handlers of SIGINT and SIGTERM that let the update under way finish.

    Attributes:
        request: the exception that a signal asks for, None before the first signal.
    """

    def __init__(self) -> None:
        self.request: type[KeyboardInterrupt] | None = None
        self._process = os.getpid()
        self._signals = [n for n, handler in DEFAULT_HANDLERS.items() if signal.getsignal(n) == handler]

    def install(self) -> None:
        for signum in self._signals:
            signal.signal(signum, self._handle)

    def remove(self) -> None:
        for signum in self._signals:
            if signal.getsignal(signum) == self._handle:  # a handler that somebody set in the meantime stays
                signal.signal(signum, DEFAULT_HANDLERS[signum])

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A second Ctrl-C does not wait. A process forked in the meantime has this handler too, but no run.
        if os.getpid() != self._process or (number == signal.SIGINT and self.request is not None):
            self.remove()
            signal.raise_signal(number)
            return
        if number == signal.SIGINT and os.isatty(2):
            os.write(2, STOPPING)  # print is not safe here: the signal may come in the middle of another print
        self.request = KeyboardInterrupt if number == signal.SIGINT else Terminated


# Of the present thread; a new thread starts without either.
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)
_handlers: ContextVar[SignalHandlers | None] = ContextVar("signal handlers", default=None)


def stop_requested() -> KeyboardInterrupt | None:
    """The exception to raise if the run is asked to stop, else None. Cheap enough for every update."""
    handlers = _handlers.get()
    if handlers is not None and handlers.request is not None:
        return handlers.request()
    return TimeUp() if time.monotonic() >= _deadline.get() else None


def stop_consensus(fabric: Fabric, meeting: bool) -> KeyboardInterrupt | None:
    """`stop_requested`; the first of several processes decides for all, and only at steps where they meet."""
    if fabric.world_size == 1:
        return stop_requested()
    return fabric.broadcast(stop_requested()) if meeting else None


def check_stop(fabric: Fabric | None = None) -> None:
    """Raise if a stop is requested; for places where nothing has to be saved first."""
    if (reason := stop_requested() if fabric is None else stop_consensus(fabric, meeting=True)) is not None:
        raise reason


@contextmanager
def time_limit(seconds: float | None, since: float | None = None) -> Iterator[None]:
    """End the runs inside the block by `TimeUp` after the update in which the time runs out, and let none start then.

    Args:
        seconds: the time; None sets no limit. Of nested limits the nearer one counts.
        since: the reading of `time.monotonic` from which it counts. Default: now.
    """
    if seconds is not None:
        number("seconds", seconds, above=0)
    end = math.inf if seconds is None else (time.monotonic() if since is None else since) + seconds
    token = _deadline.set(min(_deadline.get(), end))
    try:
        yield
    finally:
        _deadline.reset(token)


@contextmanager
def signal_handlers() -> Iterator[None]:
    """Around a run that asks `stop_requested`: the first Ctrl-C or SIGTERM waits for it, a second Ctrl-C does not.

    The request is raised at the end of the block, whatever else ended the run.
    """
    if threading.current_thread() is not threading.main_thread() or _handlers.get() is not None:
        yield
        return
    handlers = SignalHandlers()
    token = _handlers.set(handlers)
    handlers.install()
    ending: type[BaseException] | None = None
    try:
        yield
    except BaseException as error:
        ending = type(error)
        raise
    finally:
        _handlers.reset(token)
        handlers.remove()
        if handlers.request is not None and handlers.request is not ending:  # it came after the last update
            raise handlers.request
