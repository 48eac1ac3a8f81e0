"""A limit to the time that a recipe may take, for a machine that is lent by the minute."""

from __future__ import annotations

import _thread
import time
from threading import Timer
from types import TracebackType

AGAIN = 10.0  # seconds until it rings again: an interruption that falls into a destructor or a recording is lost


class Clock:
    """Interrupts the main thread, as Ctrl-C would, when the time is over; a run interrupted so can be resumed.

    Args:
        seconds: how long; None never interrupts.

        >>> with Clock(600) as clock:
        ...     train()
        >>> clock.over  # whether it was the clock, and not a person, that interrupted
    """

    def __init__(self, seconds: float | None) -> None:
        if seconds is not None and not seconds > 0:
            raise ValueError(f"seconds must be a number above 0, got {seconds!r}")
        self.over, self._open = False, True
        self._seconds = seconds
        self._timer: Timer | None = None

    def __enter__(self) -> Clock:
        if self._seconds is not None:
            self._start(self._seconds)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        """The interruption ends here; a person's goes on."""
        self._open = False
        if self._timer is None:
            return False
        self._timer.cancel()
        if self.over and error is None:
            # It rang at the last moment: what it sent is still on the way and must not arrive later.
            try:
                time.sleep(0.05)
            except KeyboardInterrupt:
                return True
        return self.over and kind is KeyboardInterrupt

    def _start(self, seconds: float) -> None:
        self._timer = Timer(seconds, self._ring)
        self._timer.daemon = True
        self._timer.start()

    def _ring(self) -> None:
        if not self._open:
            return
        self.over = True
        self._start(AGAIN)
        _thread.interrupt_main()
