"""Read the lines of a text file of any size, without holding it in memory."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from .guarded import FilePath, cannot_read, opened


class TextStream:
    """The lines of a UTF-8 file, compressed with gzip if its name ends in ``.gz``; a damaged file is a ValueError.

    Attributes:
        size: bytes of the file.
    """

    def __init__(self, path: FilePath) -> None:
        self.path, self._file = path, opened(path, None)
        self.size = os.fstat(self._file.fileno()).st_size

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._file.tell()

    def __iter__(self) -> Iterator[str]:
        count = 0
        with self._file as raw:
            packed = str(self.path).lower().endswith(".gz")
            binary = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
            try:
                for line in io.TextIOWrapper(binary, encoding="utf-8-sig", newline=""):
                    yield line
                    count += 1
            except UnicodeDecodeError:
                raise cannot_read(self.path, f"the text after line {count} is not UTF-8") from None
            except EOFError:
                raise cannot_read(self.path, "it is a truncated gzip file") from None
            except (gzip.BadGzipFile, zlib.error):
                raise cannot_read(self.path, "it is a damaged gzip file") from None
            except OSError as error:
                raise cannot_read(self.path, error.strerror or "the system refuses it") from None
