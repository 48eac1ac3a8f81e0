"""The folder that keeps compiled code between processes: names of its files, and atomic writes."""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/evenflow``, or ``~/.cache/evenflow``."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "evenflow"


def fingerprint(*parts: str) -> str:
    """Twenty hexadecimal digits that change with any of the texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it: other processes find a whole file or none.

    Raises OSError where the folder cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
    os.close(handle)
    try:
        write(Path(name))
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


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
