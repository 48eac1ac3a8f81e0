"""Writing files so that a reader, or a crash, sees the old content or the new and nothing between."""

from __future__ import annotations

import os
from pathlib import Path

TEMPORARY = ".writing-"


def write(path: Path, content: bytes) -> None:
    """Replace the file at `path` in one move: a temporary neighbour, flushed to disk, then renamed over it."""
    temporary = path.with_name(TEMPORARY + path.name)
    write_flushed(temporary, content)
    os.replace(temporary, path)
    flush_folder(path.parent)


def write_flushed(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with open(path, "wb") as file:
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
