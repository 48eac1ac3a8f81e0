"""Sittings of a run in forked processes of their own, which may be killed at a moment, and what became of them."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harden.file_operations import Operation, watch_files
from harden.run_kinds import RunKind

PATIENCE = 180  # seconds after which a sitting counts as hung
DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 3  # exit codes


@dataclass(frozen=True)
class Sitting:
    """The end of a sitting: its exit code, or minus the signal that killed it; what it said; its duration."""

    code: int
    said: str
    seconds: float

    @property
    def done(self) -> bool:
        return self.code == DONE

    @property
    def refused(self) -> bool:
        """Whether a ValueError ended it, as it ends a command with exit code 2."""
        return self.code == REFUSED


def sit(
    kind: RunKind,
    folder: Path,
    prepare: Callable[[], None] | None = None,
    meanwhile: Callable[[int], None] | None = None,
) -> Sitting:
    """Begin or continue a run in a forked process.

    Args:
        prepare: called in that process before the run.
        meanwhile: called in this process with the id of that one.
    """
    log, start = folder.with_suffix(".log"), time.monotonic()
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.alarm(PATIENCE)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            if prepare is not None:
                prepare()
            kind.sitting(folder)
            code = DONE
        except KeyboardInterrupt:
            code = INTERRUPTED
        except ValueError as error:
            code = REFUSED if type(error) is ValueError else FAILED
            os.write(2, (str(error) if code == REFUSED else traceback.format_exc()).encode())
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    if meanwhile is not None:
        meanwhile(child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seconds = time.monotonic() - start
    said = log.read_text(errors="replace") if log.exists() else ""
    if code not in (DONE, REFUSED, INTERRUPTED, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT):
        raise AssertionError(f"a sitting ended with {code}: {said[-1500:]}")
    return Sitting(code, said, seconds)


def killed_before(moment: int, halves: bool = False) -> Callable[[], None]:
    """For `sit`: kill the process before its change number `moment` of a file, or with `halves` in the middle of it."""

    def prepare() -> None:
        count = 0

        def before(operation: Operation, write: Callable[[bytes], object]) -> None:
            nonlocal count
            if count == moment:
                if halves:
                    write(operation.data[: len(operation.data) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

        watch_files(before)

    return prepare


def recorded(path: Path) -> Callable[[], None]:
    """For `sit`: write the kind of each change of a file to `path`, one a line."""

    def prepare() -> None:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        watch_files(lambda operation, _: os.write(log, f"{operation.kind}\n".encode()))

    return prepare
