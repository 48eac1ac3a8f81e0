"""Arrays made from a data set, kept between runs where there is a place to keep them."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .folder import cache_folder
from .guarded import read_arrays

Arrays = dict[str, np.ndarray]


def kept(
    name: str, arrays: Sequence[str], make: Callable[[], Mapping[str, np.ndarray]], good: Callable[[Arrays], bool]
) -> Arrays:
    """The arrays under `name` in the cache, else made now and put there.

    What is damaged, or not `good`, is made again. A cache that cannot be written is done without. Neither is an error:
    the cache saves time and nothing else.

    Args:
        name: of the file, without ending. Must change with anything the arrays depend on.
        arrays: names of the arrays.
        make: makes them.
        good: whether arrays read from the cache are of the kinds and sizes that `make` gives.
    """
    try:
        path = cache_folder() / f"{name}.npz"
        found = read_arrays(path, arrays)
        if good(found):
            return found
    except ValueError:
        pass
    made = dict(make())
    with contextlib.suppress(OSError, ValueError):
        _write(name, made)
    return made


def _write(name: str, arrays: Arrays) -> None:
    """Write one file in one move, so that of several processes each finds a whole one."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.getbuffer())
        os.replace(temporary, folder / f"{name}.npz")
    except BaseException:
        os.unlink(temporary)
        raise
