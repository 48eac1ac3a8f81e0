"""The corpus: small files, found by guided fuzzing, that reach code which the good files do not."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
LARGEST = 4096  # bytes of a file; larger ones are not kept
DATE = (1980, 1, 1, 0, 0, 0)  # of the members, so that equal files make equal archives


def corpus(name: str, folder: Path = FOLDER) -> list[bytes]:
    """The files of the corpus for a target, in a fixed order; none for a new target."""
    path = folder / f"{file_name(name)}.zip"
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as archive:
        return [archive.read(member) for member in sorted(archive.namelist())]


def write_corpus(name: str, contents: Iterable[bytes], folder: Path = FOLDER) -> None:
    """Replace the corpus of a target by those of the contents that are small."""
    kept = {hashlib.sha256(content).hexdigest()[:16]: content for content in contents if len(content) <= LARGEST}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_name(name)}.zip"
    path.unlink(missing_ok=True)
    if not kept:
        return
    with zipfile.ZipFile(path, "w") as archive:
        for digest, content in sorted(kept.items()):
            archive.writestr(zipfile.ZipInfo(digest, DATE), content, zipfile.ZIP_DEFLATED, 9)


def file_name(target: str) -> str:
    """The name of a target as that of a file."""
    return target.replace(" ", "-").replace("/", "-")
