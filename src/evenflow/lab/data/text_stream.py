"""Read the lines of a text file of any size, without holding more than one line of it in memory."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from .guarded import FilePath, cannot_read, opened

LONGEST_LINE = 1 << 26  # characters
# What a gzip file may expand to if all of it is held in memory: as much, or as many times its size. Tables of numbers
# become three to ten times smaller.
EXPANDED, RATIO = 1 << 27, 10


class TextStream:
    """The lines of a UTF-8 file, compressed with gzip if its name ends in ``.gz``; a damaged file is a ValueError.

    Args:
        path: the file.
        held: whether all lines will be held in memory, so that a gzip file must not expand too much.

    Attributes:
        size: bytes of the file.
    """

    def __init__(self, path: FilePath, held: bool = False) -> None:
        self.path, self._file = path, opened(path, None)
        self.size = os.fstat(self._file.fileno()).st_size
        self._packed = str(path).lower().endswith(".gz")
        self._limit = max(EXPANDED, RATIO * self.size) if held and self._packed else None

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._file.tell()

    def __iter__(self) -> Iterator[str]:
        count = characters = 0
        with self._file as raw:
            binary = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if self._packed else raw
            text = io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")
            try:
                while line := text.readline(LONGEST_LINE):
                    count += 1
                    characters += len(line)
                    if len(line) == LONGEST_LINE:
                        raise cannot_read(self.path, f"line {count} has {LONGEST_LINE:,} characters or more")
                    if self._limit is not None and characters > self._limit:
                        raise cannot_read(
                            self.path,
                            f"it expands to more than {self._limit:,} bytes, {RATIO} times its size: unpack it",
                        )
                    yield line
            except UnicodeDecodeError:
                raise cannot_read(self.path, f"the text after line {count} is not UTF-8") from None
            except EOFError:
                raise cannot_read(self.path, "it is a truncated gzip file") from None
            except (gzip.BadGzipFile, zlib.error):
                raise cannot_read(self.path, "it is a damaged gzip file") from None
            except OSError as error:
                raise cannot_read(self.path, error.strerror or "the system refuses it") from None
