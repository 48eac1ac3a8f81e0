"""The description of a data set: its files, their checksums and addresses, its terms of use and its origin."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class File:
    """One file of a data set.

    Args:
        path: path below the data folder, with ``/`` between its parts.
        size: bytes; None if not known.
        sha256: SHA-256 of the bytes; None if not known.
        url: an address that serves these bytes; None if there is none.
        packed: the file is compressed with gzip, and `size` and `sha256` are those of its content.
        alternatives: files that may stand in its place.
    """

    path: str
    size: int | None = None
    sha256: str | None = None
    url: str | None = None
    packed: bool = False
    alternatives: tuple[File, ...] = ()

    @property
    def choices(self) -> tuple[File, ...]:
        """This file and its alternatives, the preferred one first."""
        return (self, *self.alternatives)


@dataclass(frozen=True)
class Source:
    """A data set and where it comes from.

    Args:
        name: the name for ``evenflow data get``.
        title: a short description.
        files: the files, all of which are needed.
        terms: the terms of use.
        origin: whom to cite.
        note: where to find files that cannot be downloaded, and what is special about them.
        layouts: other complete sets of files that a user may have instead.
    """

    name: str
    title: str
    files: tuple[File, ...]
    terms: str
    origin: str
    note: str = ""
    layouts: tuple[tuple[File, ...], ...] = ()

    @property
    def size(self) -> int | None:
        """Bytes of all files together; None if one is not known."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def fetchable(self) -> bool:
        """Whether every file has an address."""
        return all(file.url for file in self.files)

    def locate(self, folder: Path, path: str) -> Path:
        """The file `path` of this source in `folder`, or the first of its alternatives that is there.

        Raises:
            ValueError: none of them is there; the message says how to get the file.
        """
        file = next(file for file in self.files if file.path == path)
        for choice in file.choices:
            # os.path.exists returns False, where Path.exists raises, if a folder may not be entered.
            if os.path.exists(located := folder / choice.path):
                return located
        raise ValueError(f"{path} is not in the data folder {str(folder)!r}: {self.remedy(folder)}")

    def remedy(self, folder: Path) -> str:
        """What a user can do about a missing file."""
        if self.fetchable:
            return f"`evenflow data get {self.name} --data {shlex.quote(str(folder))}` fetches it"
        return f"put it there by hand ({self.note or self.origin})"
