"""Read files that may be damaged or malicious: sizes have limits, nothing is unpickled, errors are one sentence."""

from __future__ import annotations

import gzip
import io
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np

FilePath = str | os.PathLike[str]

DEFAULT = 1 << 30  # bytes; the largest file in the catalogue has 66 MB
EXPANDED = 1 << 28  # bytes that a gzip file may expand to
CHUNK = 1 << 20
# zipfile decompresses as many compressed bytes as one read asks for; for bz2 and LZMA the result has no limit.
SMALL_CHUNK = 1 << 12
LARGEST_RECORD = 1 << 26  # bytes of a record of a sweep or a recipe, or of a recipe itself
LONGEST_HEADER = 1 << 14  # numpy itself refuses headers of more than 10,000 bytes
GZIP_MAGIC, NPY_MAGIC, PICKLE_MAGIC, ZIP_MAGIC = b"\x1f\x8b", b"\x93NUMPY", b"\x80", b"PK"


def cannot_read(path: FilePath, why: str) -> ValueError:
    """The error for a file that cannot be used: its path and what is wrong with it."""
    return ValueError(f"cannot read {str(path)!r}: {why}")


def read_bytes(path: FilePath, limit: int | None = DEFAULT) -> bytes:
    """The bytes of a file of at most `limit` bytes; None for any number.

    Raises:
        ValueError: the file is missing, empty, too large, not a regular file, or not readable.
    """
    with opened(path, limit) as file:
        try:
            # What the file has: a read of `limit` bytes would allocate them whatever its size.
            data = file.read(os.fstat(file.fileno()).st_size + 1)
        except OSError as error:
            raise cannot_read(path, error.strerror or "the system refuses it") from None
    if limit is not None and len(data) > limit:  # the file has grown since it was opened
        raise cannot_read(path, f"it is larger than {limit:,} bytes")
    return data


def read_gzip(path: FilePath, limit: int = EXPANDED) -> bytes:
    """The content of a gzip file of at most `limit` bytes.

    Raises:
        ValueError: as in `read_bytes`; also if the file is not gzip, truncated, damaged, or its content too large.
    """
    packed = read_bytes(path, limit)
    if not packed.startswith(GZIP_MAGIC):
        raise cannot_read(path, "it is not a gzip file")
    data = bytearray()
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        try:
            while len(data) <= limit and (piece := file.read(CHUNK)):
                data += piece
        except EOFError:
            raise cannot_read(path, "it is a truncated gzip file") from None
        except (OSError, zlib.error):
            raise cannot_read(path, "it is a damaged gzip file") from None
    if len(data) > limit:
        raise cannot_read(path, f"it expands to more than {limit:,} bytes")
    if not data:
        raise cannot_read(path, "there is nothing inside it")
    return bytes(data)


def read_text(path: FilePath, limit: int = DEFAULT) -> str:
    """The text of a UTF-8 file, compressed with gzip if its name ends in ``.gz``, without a byte order mark.

    Raises:
        ValueError: as in `read_bytes` and `read_gzip`; also if bytes are not UTF-8, with the number of their line.
    """
    data = read_gzip(path, min(limit, EXPANDED)) if str(path).lower().endswith(".gz") else read_bytes(path, limit)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The decoder counts from after the byte order mark.
        start = error.start + (len(data) - len(error.object))
        line = data.count(b"\n", 0, start) + 1
        raise cannot_read(path, f"line {line} is not UTF-8 text (byte 0x{data[start]:02x})") from None


def read_arrays(
    path: FilePath, names: Sequence[str] | None = None, limit: int = DEFAULT, optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Arrays of numbers or text from an npz file, by name.

    Nothing is unpickled. The size that the archive declares, the size after decompression and the size that follows
    from the shape of an array must agree, so a small file cannot ask for a large memory.

    Args:
        path: the npz file; its members may be stored, deflated, or compressed with bz2 or LZMA.
        names: arrays that the file must have. Default: all that it has.
        limit: the most bytes that all arrays together may have.
        optional: arrays to read if the file has them.

    Returns:
        Writable arrays in this machine's byte order, in the order of `names` and `optional`.

    Raises:
        ValueError: as in `read_bytes`; also if the file is no npz, is damaged, lacks a name, holds Python objects, or
            exceeds the limit.
    """
    with opened(path, limit) as file, npz_archive(path, file) as archive:
        members = npz_members(path, archive, names, optional)
        declared = sum(info.file_size for info in members.values())
        if declared > limit:
            raise cannot_read(path, f"its arrays expand to {declared:,} bytes, more than {limit:,}")
        return {name: _array(path, name, _member(path, archive, info)) for name, info in members.items()}


def npz_members(
    path: FilePath, archive: zipfile.ZipFile, names: Sequence[str] | None, optional: Sequence[str]
) -> dict[str, zipfile.ZipInfo]:
    """The members of an archive with these names, or all, and those of the optional ones that there are."""
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    names = list(members) if names is None else names
    if missing := [name for name in names if name not in members]:
        available = ", ".join(repr(name[:40]) for name in sorted(members)[:20]) or "none"
        raise cannot_read(path, f"it has no array {missing[0]!r}, found {available}")
    return {name: members[name] for name in (*names, *optional) if name in members}


def opened(path: FilePath, limit: int | None) -> BinaryIO:
    """Open a regular file of at most `limit` bytes; None for any size."""
    try:
        # Checked before opening: opening a pipe waits for a writer.
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise cannot_read(path, "it is a folder")
        if not stat.S_ISREG(status.st_mode):
            raise cannot_read(path, "it is not a regular file")
        if status.st_size == 0:
            raise cannot_read(path, "it is empty")
        if limit is not None and status.st_size > limit:
            raise cannot_read(path, f"it has {status.st_size:,} bytes, more than {limit:,}")
        return Path(path).open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise cannot_read(path, "there is no such file") from None
    except PermissionError:
        raise cannot_read(path, "there is no permission to read it") from None
    except OSError as error:
        raise cannot_read(path, error.strerror or "the system refuses it") from None
    except ValueError as error:
        if "null" in str(error):  # "embedded null byte": such a path cannot exist
            raise cannot_read(path, "there is no such file") from None
        raise


def npz_archive(path: FilePath, file: BinaryIO) -> zipfile.ZipFile:
    """The archive in an open file."""
    start = file.read(len(NPY_MAGIC))
    try:
        return zipfile.ZipFile(file)
    except Exception:  # damaged archives raise errors of many kinds
        if start.startswith(NPY_MAGIC):
            raise cannot_read(path, "it is a single npy array, not an npz file of named arrays") from None
        if start.startswith(PICKLE_MAGIC):
            raise cannot_read(path, "it is a pickle, which is never read, not an npz file") from None
        if start.startswith(ZIP_MAGIC):
            raise cannot_read(path, "it is a damaged or truncated npz file") from None
        raise cannot_read(path, "it is not an npz file") from None


def _member(path: FilePath, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytearray:
    """The content of one member. zipfile stops at the declared size and then compares the checksum."""
    return MemberStream(path, archive, info).read(info.file_size)


class MemberStream:
    """The content of one member of an archive, some bytes at a time. After the last ones its checksum is compared."""

    def __init__(self, path: FilePath, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._path, self._archive, self._info = path, archive, info
        self._chunk = CHUNK if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) else SMALL_CHUNK
        self._file: IO[bytes] | None = None
        self._left = info.file_size

    def read(self, count: int) -> bytearray:
        """The next bytes; a ValueError if there are fewer."""
        data = bytearray()
        try:
            self._file = self._file or self._archive.open(self._info)
            while len(data) < count and (piece := self._file.read(min(self._chunk, count - len(data)))):
                data += piece
            self._left -= len(data)
            longer = self._left <= 0 and self._file.read(1)
        except Exception:  # zlib, lzma, bz2 and zipfile have errors of their own, also for passwords, unknown methods
            name = self._info.filename
            raise cannot_read(self._path, f"its member {name!r} is damaged, truncated or encrypted") from None
        if len(data) != count or longer:
            raise cannot_read(self._path, f"its member {self._info.filename!r} is truncated")
        return data


def _array(path: FilePath, name: str, data: bytearray) -> np.ndarray:
    """The array in the bytes of one npy member. Its header must not claim Python objects or another size."""
    header = array_header(path, name, data[:LONGEST_HEADER], len(data))
    count = math.prod(header.shape)
    try:
        array = np.frombuffer(data, header.dtype, count, header.start)
        array = array.reshape(header.shape, order="F" if header.by_columns else "C")
    except Exception:  # too many dimensions, or a huge one next to a zero
        raise cannot_read(path, f"array {name!r} says it has shape {header.shape}, which is not possible") from None
    return array.astype(header.dtype.newbyteorder("="), order="C", copy=False)


class ArrayHeader(NamedTuple):
    """What an npy member says about its array, whose numbers begin at byte `start`."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]
    start: int


def array_header(path: FilePath, name: str, first: bytes | bytearray, size: int) -> ArrayHeader:
    """Read the header in the first bytes of an npy member of `size` bytes, and check it."""
    stream = io.BytesIO(first)
    try:
        version = np.lib.format.read_magic(stream)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, by_columns, dtype = header(stream)
        count = math.prod(shape)
    except Exception:  # a header is a Python literal, which can be wrong in many ways
        raise cannot_read(path, f"its member {name!r} is not an array") from None
    if dtype.hasobject:
        raise cannot_read(path, f"array {name!r} holds Python objects (a pickle), which are never read")
    if dtype.kind not in "biufcUS" or dtype.itemsize == 0:
        raise cannot_read(path, f"array {name!r} has type {dtype}, which is neither numbers nor text")
    start = stream.tell()
    if min(shape, default=0) < 0 or count * dtype.itemsize != size - start:
        raise cannot_read(path, f"array {name!r} says it has shape {shape}, which does not fit its size")
    return ArrayHeader(shape, by_columns, dtype, start)
