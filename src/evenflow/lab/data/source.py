"""What is known of a data set: its files, their checksums, its terms and where it comes from."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class File:
    """One file of a data set.

    Args:
        path: below the data folder, with ``/`` between its parts.
        size: in bytes; None where it is not known.
        sha256: of its bytes; None where it is not known.
        url: an address where these very bytes are; None where there is none.
        packed: `size` and `sha256` are those of the content of this gzip file, whoever packed it.
        alternatives: other files that will do in its place.
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
    """A data set that can be had.

    Args:
        name: what it is called on the command line.
        title: what it is, in a few words.
        files: all of them are needed.
        terms: of use.
        origin: whom to cite.
        note: where to find files that cannot be fetched, and what is special about them.
        layouts: other sets of files, each complete by itself, that a user may have instead.
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
        """Bytes of all files together; None where one is not known."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def fetchable(self) -> bool:
        """Whether every file has an address."""
        return all(file.url for file in self.files)

    def locate(self, folder: Path, path: str) -> Path:
        """The file `path` of this source in `folder`, or the first of its alternatives that is there.

        Raises:
            ValueError: none of them is there; the sentence says how to get it.
        """
        file = next(file for file in self.files if file.path == path)
        for choice in file.choices:
            if os.path.exists(found := folder / choice.path):  # False, not an error, where it may not be looked
                return found
        raise ValueError(f"{path} is not in the data folder {str(folder)!r}: {self.remedy(folder)}")

    def remedy(self, folder: Path) -> str:
        """What to do about a missing file."""
        if self.fetchable:
            return f"`evenflow data get {self.name} --data {shlex.quote(str(folder))}` fetches it"
        return f"put it there by hand ({self.note or self.origin})"
