"""A lock on a folder, which ends with the process that holds it."""

from __future__ import annotations

import os


def lock_folder(folder: str | os.PathLike[str]) -> int | None:
    """Lock a folder for this process until the descriptor that is returned is closed or the process ends.

    Raises:
        BlockingIOError: another process holds the lock.

    Returns None where there are no such locks: on systems other than POSIX and on some network file systems.
    """
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor
