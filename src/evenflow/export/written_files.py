"""Writes the files of an export: all of them or, if one cannot be written, none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write every file under another name, then rename all; files in their places stay until then.

    Raises a ValueError that names the file that cannot be written.
    """
    temporary = {target: target.with_name(f".writing-{target.name}") for target in files}
    target = next(iter(files))
    try:
        for target, content in files.items():
            if target.is_dir():
                raise IsADirectoryError(None, "it is a folder")
            temporary[target].write_bytes(content)
        for target in files:
            os.replace(temporary[target], target)
    except OSError as error:
        raise ValueError(f"path {str(target)!r} cannot be written: {error.strerror or error}") from error
    finally:
        for each in temporary.values():
            with suppress(OSError):
                each.unlink()
