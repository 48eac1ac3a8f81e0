"""Writing files so that a reader, or a crash, sees the old content or the new and nothing between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = ".writing-"


def write(path: Path, content: bytes) -> None:
    """Replace the file at `path` in one move: a temporary neighbour, flushed to disk, then renamed over it.

    An OSError names `path`, which is then as it was, and no temporary stays.
    """
    temporary = path.with_name(TEMPORARY + path.name)
    with named(path):
        try:
            write_flushed(temporary, content)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        flush_folder(path.parent)


def write_flushed(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with named(path), open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Wait until renames inside `folder` are on disk, where the system can say so."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let an OSError of the block name `path`: that of a full disk names no file, that of a move the temporary."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror or os.strerror(error.errno), str(path)) from error
