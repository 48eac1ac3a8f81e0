"""A folder of many runs, for one process at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .run_folder import lock


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold `folder`, made if it is not there, as long as the block runs; a ValueError if another process holds it.

    Of processes that run together (torchrun) the first holds it for all.
    """
    if int(os.environ.get("RANK", "0")):
        yield
        return
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder {str(folder)!r} is a file, and runs need a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = lock(folder)
    except OSError as error:
        raise ValueError(f"folder {str(folder)!r} cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
