"""The folder that keeps compiled code between processes: names of its files, whom it trusts, and atomic writes.

Compiled code runs with the rights of the user. Only what this user wrote is loaded: the folder and its files must
belong to the user, and nobody else may write to them. A digest beside each file is compared before the file is used: a
truncated or damaged file is made again, not run.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from evenflow.runtime.lock_folder import lock_folder

UNFINISHED = ".evenflow-"  # folders in which files are made
DIGEST = ".sha256"


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/evenflow`` where this is an absolute path, or ``~/.cache/evenflow``."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(chosen) if os.path.isabs(chosen) else Path(os.path.expanduser("~"), ".cache")) / "evenflow"


def fingerprint(*parts: str) -> str:
    """Twenty hexadecimal digits that change with any of the texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def trusted_folder(folder: Path) -> bool:
    """Return True for a folder of the user's that nobody else may write to; it is made if it is missing.

    Where it belongs to another user, is a symbolic link or can be written to by others, one warning says so, and
    nothing is read from it or written to it.
    """
    if not folder.is_absolute():  # an unknown home folder
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        parent, own = folder.parent.stat(), folder.lstat()
    except OSError:
        return False
    others = parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX
    why = "everyone may replace it: its parent can be written to by all users" if others else _distrusted(own)
    if why:
        _warn_once(f"folder {str(folder)!r}, since {why}; code is compiled anew, in a temporary folder")
    elif stat.S_IMODE(own.st_mode) != 0o700 and os.name == "posix":
        with suppress(OSError):
            folder.chmod(0o700)
    return why is None and stat.S_ISDIR(own.st_mode)


def read_verified(path: Path) -> bytes | None:
    """The content that `keep` wrote to a trusted folder; None where it is missing, damaged or not the user's own."""
    try:
        content, digest = _read_own(path), _read_own(_digest_path(path))
    except OSError:
        return None
    return content if digest == _digest(path, content) else None


def keep(path: Path, content: bytes) -> bool:
    """Write a file and its digest into a trusted folder; return False where that is impossible.

    Other processes, and this machine after a power failure, find both, or what does not fit together and is made again.
    """
    try:
        with unfinished(path.parent) as folder:
            for target, written in ((path, content), (_digest_path(path), _digest(path, content))):
                with open(folder / target.name, "wb") as file:
                    file.write(written)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(folder / target.name, target)
    except OSError:
        return False
    return True


def cached_bytes(path: Path, make: Callable[[], bytes]) -> bytes:
    """The content of a file, made and written where it is missing or damaged; an unwritable folder is no error."""
    trusted = trusted_folder(path.parent)
    if trusted and (content := read_verified(path)) is not None:
        return content
    content = make()
    if trusted:
        keep(path, content)
    return content


@contextmanager
def unfinished(parent: Path) -> Iterator[Path]:
    """A temporary folder in `parent` for the user alone. Those that killed processes have left are removed."""
    _remove_abandoned(parent)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=parent, ignore_cleanup_errors=True) as name:
        descriptor = None
        with suppress(BlockingIOError):  # a process that looks for abandoned folders holds it for a moment
            descriptor = lock_folder(name)
        try:
            yield Path(name)
        finally:
            if descriptor is not None:
                os.close(descriptor)


def compile_once(function: Callable[..., Any]) -> Any:
    """`functools.cache` for functions that compile: of two threads that call at the same time, the second waits."""
    lock, compiled = threading.RLock(), functools.cache(function)

    @functools.cache  # a result that is there needs no lock
    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with lock:
            return compiled(*arguments)

    def clear() -> None:
        compiled.cache_clear()
        outer_clear()

    outer_clear, call.cache_clear = call.cache_clear, clear  # type: ignore[method-assign]
    return call


def _digest_path(path: Path) -> Path:
    return path.with_name(path.name + DIGEST)


def _digest(path: Path, content: bytes) -> bytes:
    """A digest of the file's name too: one library in the place of another computes wrong numbers."""
    return hashlib.sha256(path.name.encode() + b"\0" + content).hexdigest().encode()


def _read_own(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        why = _distrusted(path.lstat()) or _distrusted(os.fstat(descriptor))
        if why or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            _warn_once(f"{str(path)!r}, since {why or 'it is not a file'}; its code is compiled anew")
            raise OSError
        return file.read()


def _distrusted(status: os.stat_result) -> str | None:
    """The reason why a file or folder may have been written by somebody else, or None."""
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if os.name != "posix":  # rights of other systems do not show in these numbers
        return None
    if status.st_uid != os.geteuid():
        return f"it belongs to another user (number {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to it (mode {stat.S_IMODE(status.st_mode):o})"
    return None


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(f"evenflow loads no compiled code from {text}", RuntimeWarning, stacklevel=3)


def _remove_abandoned(parent: Path) -> None:
    """Remove what killed processes have left in a folder: nobody holds its lock."""
    for folder in parent.glob(UNFINISHED + "*"):
        with suppress(OSError):
            if (descriptor := lock_folder(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(descriptor)
