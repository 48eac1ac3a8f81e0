"""Read cells of matrices from MATLAB 5 files.

Note: ``scipy.io.loadmat`` is not used because a file with one wrong byte can crash it with a segmentation fault, which
cannot be caught. This reader checks every size; `test_matlab` compares it with scipy on the real sets.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator

import numpy as np

from .guarded import FilePath, cannot_read, read_bytes

LIMIT = 1 << 28  # bytes, compressed or not; the largest music set has 35 MB
MOST = 100_000  # elements in a row; an element takes far more memory than its bytes, and the largest set has 694
HEADER, TAG = 128, 8
MATRIX, COMPRESSED, INT32, UINT32 = 14, 15, 5, 6  # types of elements
CELL, FIRST_NUMERIC, LAST_NUMERIC = 1, 6, 15  # classes of matrices; the numeric ones are double, single, int8 to uint64
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
COMPLEX = 0x800


class _Damaged(Exception):
    """What is wrong with the file."""


def read_cells(path: FilePath) -> dict[str, list[np.ndarray]]:
    """The cells of real matrices in a MATLAB 5 file: a dictionary from names to matrices, in MATLAB's order.

    Other variables are ignored.

    Raises:
        ValueError: as in `guarded.read_bytes`; also if the file is not MATLAB 5, is damaged, or its content too large.
    """
    data = read_bytes(path, LIMIT)
    order = {b"IM": "<", b"MI": ">"}.get(data[HEADER - 2 : HEADER])
    if order is None or struct.unpack(f"{order}H", data[HEADER - 4 : HEADER - 2])[0] >> 8 != 1:
        raise cannot_read(path, "it is not a MATLAB 5 file")
    cells: dict[str, list[np.ndarray]] = {}
    left = LIMIT
    try:
        for kind, content in _elements(memoryview(data)[HEADER:], order):
            if kind == COMPRESSED:
                content = _expanded(content, left)
                left -= len(content)
                inside = list(_elements(content, order))
                if len(inside) != 1:
                    raise _Damaged("a packed variable is damaged")
                kind, content = inside[0]
            if kind == MATRIX:
                name, matrices = _variable(content, order)
                if matrices is not None:
                    cells[name] = matrices
    except _Damaged as error:
        raise cannot_read(path, f"it is a damaged MATLAB file: {error}") from None
    return cells


def _expanded(packed: memoryview, left: int) -> memoryview:
    machine = zlib.decompressobj()
    try:
        content = machine.decompress(packed, left + 1)
    except zlib.error:
        raise _Damaged("a packed variable is damaged") from None
    if len(content) > left:
        raise _Damaged(f"it expands to more than {LIMIT:,} bytes")
    if not machine.eof:
        raise _Damaged("a packed variable ends early")
    return memoryview(content)


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """The type and content of each element. A content of up to four bytes may stand inside the tag."""
    place = count = 0
    while place < len(data):
        if (count := count + 1) > MOST:
            raise _Damaged(f"it has more than {MOST:,} elements in a row")
        if place + TAG > len(data):
            raise _Damaged("it ends early")
        kind, size = struct.unpack_from(f"{order}II", data, place)
        if kind >> 16:
            kind, size, start, step = kind & 0xFFFF, kind >> 16, place + TAG // 2, TAG
            if size > TAG // 2:
                raise _Damaged(f"a short element says it has {size} bytes")
        else:
            start = place + TAG
            step = TAG + (size if kind == COMPRESSED else -(-size // TAG) * TAG)
        if start + size > len(data):
            raise _Damaged("it ends early")
        yield kind, data[start : start + size]
        place += step


def _variable(content: memoryview, order: str) -> tuple[str, list[np.ndarray] | None]:
    """The name of a variable, and its matrices if it is a cell."""
    kind, shape, name, rest = _matrix(content, order)
    if kind != CELL:
        return name, None
    if len(rest) != math.prod(shape):
        raise _Damaged(f"cell {name!r} says it has {math.prod(shape)} entries and has {len(rest)}")
    return name, [_numbers(name, place, element, order) for place, element in enumerate(rest)]


def _numbers(name: str, place: int, element: tuple[int, memoryview], order: str) -> np.ndarray:
    where = f"entry {place} of {name!r}"
    kind, content = element
    if kind != MATRIX or not content:
        raise _Damaged(f"{where} is not a matrix")
    kind, shape, _, parts = _matrix(content, order)
    if not FIRST_NUMERIC <= kind <= LAST_NUMERIC or len(parts) != 1 or parts[0][0] not in NUMBERS:
        raise _Damaged(f"{where} is not a matrix of real numbers")
    dtype, numbers = np.dtype(order + NUMBERS[parts[0][0]]), parts[0][1]
    if math.prod(shape) * dtype.itemsize != len(numbers):
        raise _Damaged(f"{where} says it has shape {shape}, which does not fit its size")
    return np.frombuffer(numbers, dtype).reshape(shape, order="F")


def _matrix(content: memoryview, order: str) -> tuple[int, tuple[int, ...], str, list[tuple[int, memoryview]]]:
    """The class, shape and name of a matrix, and the elements that follow."""
    elements = list(_elements(content, order))
    if len(elements) < 3:
        raise _Damaged("a matrix ends early")
    (kind_1, flags), (kind_2, dimensions), (_, name), *rest = elements
    if kind_1 != UINT32 or len(flags) != 8 or kind_2 != INT32 or len(dimensions) not in (8, 12, 16):
        raise _Damaged("a matrix has no header")
    word = struct.unpack_from(f"{order}I", flags)[0]
    shape = struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
    if min(shape) < 0:
        raise _Damaged(f"a matrix says it has shape {shape}")
    return (0 if word & COMPLEX else word & 0xFF), shape, bytes(name[:64]).decode("ascii", "replace"), rest
