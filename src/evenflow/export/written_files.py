"""Writes the files of an export: all of them or, if one cannot be written, none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

MARK, OPENING = b"evenflow", 1 << 12  # every export says near its beginning what wrote it


def write_files(files: Mapping[Path, bytes]) -> None:
    """Write every file under another name, then rename all; files in their places stay until then.

    Earlier exports are replaced. A ValueError names another file that is in the way, or one that cannot be written.
    """
    files = {Path(os.path.realpath(target)): content for target, content in files.items()}  # a link stays a link
    for target in files:
        _check_replaceable(target)
    temporary = {target: target.with_name(f".writing-{target.name}") for target in files}
    target = next(iter(files))
    try:
        for target, content in files.items():
            temporary[target].write_bytes(content)
        for target in files:
            os.replace(temporary[target], target)
    except OSError as error:
        raise ValueError(f"path {str(target)!r} cannot be written: {error.strerror or error}") from error
    finally:
        for each in temporary.values():
            with suppress(OSError):
                each.unlink()


def _check_replaceable(target: Path) -> None:
    """Raise a ValueError unless there is no file at this path, an empty one, or an earlier export."""
    if target.is_dir():
        raise ValueError(f"path {str(target)!r} cannot be written: it is a folder")
    opening = b""
    with suppress(OSError):  # a file that cannot be read: writing says why
        if target.is_file():
            with target.open("rb") as file:
                opening = file.read(OPENING)
    if (opening and MARK not in opening) or (target.exists() and not target.is_file()):
        raise ValueError(f"path {str(target)!r} exists and was not exported by evenflow: choose another name")
