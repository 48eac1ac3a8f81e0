"""Write files so that a reader, or a crash, sees either the old content or the new, never a mixture."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = ".writing-"


def write(path: Path, content: bytes) -> None:
    """Replace the file at `path` in one step: write a temporary file beside it, flush it to disk, and rename it.

    An OSError names `path`, whose old content then stays; the temporary file is removed.
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


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files and folders that writes killed in the middle have left in `folder`.

    Only for the process that holds the lock of the folder: another may be writing.
    """
    for entry in folder.glob(TEMPORARY + "*"):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.unlink()


def write_output(path: Path, content: str | bytes) -> Path:
    """Write the file that a caller's argument `out` names, and return its path; a ValueError if that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ValueError(f"out must be a file that can be written, got {str(path)!r} ({error.strerror})") from None
    return path


def write_flushed(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with named(path), open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Wait until renames inside `folder` are on disk, if the system supports that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Let an OSError of the block name `path`, not the temporary file or, on a full disk, no file at all."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror or os.strerror(error.errno), str(path)) from error


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn an OSError of the block into a ValueError which says that `folder` cannot be written."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"folder {str(folder)!r} cannot be written: {error.strerror or error}") from error
