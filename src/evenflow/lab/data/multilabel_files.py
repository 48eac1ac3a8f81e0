"""Read multi-label data sets, rows of features with any number of labels each: Bibtex and Mediamill."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from evenflow.checks import unknown

from .guarded import FilePath, cannot_read, read_arrays, read_text
from .number_table import LARGEST, SHOWN, number

SETS = ("bibtex", "mediamill")
MOST = 1 << 26  # numbers in a dense table; Mediamill has 3.7 million


class Multilabel(NamedTuple):
    """Features and labels, dense.

    Shapes:
        x_train, x_test: ``(N, F)`` float32. y_train, y_test: ``(N, L)`` uint8 of zeros and ones.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def read_multilabel(folder: FilePath, name: str) -> Multilabel:
    """One multi-label set from a data folder.

    The set is either ``multilabel/NAME.npz``, with bits packed along the rows, or two text files of the extreme
    classification repository, ``multilabel/NAME_train.txt`` and ``multilabel/NAME_test.txt``: a line with the numbers
    of rows, features and labels, then one line per row with its labels, separated by commas, and feature:value pairs.
    All are counted from zero, and a row without labels starts with a blank. If the repository has all rows in one file
    and the split in another, the user writes the rows of each part to a file of its own.

    Args:
        folder: the data folder.
        name: "bibtex" (4,880 + 2,515 rows, 1,836 features, 159 labels) or "mediamill" (30,993 + 12,914, 120, 101).

    Raises:
        ValueError: the name is unknown, or a file is missing or damaged; the message names its path and line.

    Reference: Katakis et al. 2008 (Bibtex); Snoek et al. 2006 (Mediamill).
    """
    if name not in SETS:
        raise ValueError(unknown("multi-label set", name, SETS))
    root = Path(folder) / "multilabel"
    train = root / f"{name}_train.txt"
    if name == "bibtex" and not train.exists():
        return _from_bits(root / f"{name}.npz")
    test = root / f"{name}_test.txt"
    (x_train, y_train), (x_test, y_test) = read_sparse(train), read_sparse(test)
    if (x_test.shape[1], y_test.shape[1]) != (x_train.shape[1], y_train.shape[1]):
        sizes = f"{x_test.shape[1]} features and {y_test.shape[1]} labels"
        expected = f"{x_train.shape[1]} and {y_train.shape[1]}"
        raise cannot_read(test, f"it has {sizes}, the rows to train on have {expected}")
    return Multilabel(x_train, y_train, x_test, y_test)


def read_sparse(path: FilePath) -> tuple[np.ndarray, np.ndarray]:
    """Features ``(N, F)`` float32 and labels ``(N, L)`` uint8 from one file of sparse text."""
    first, *rows = read_text(path).rstrip().split("\n")
    sizes = first.split()
    if len(sizes) != 3 or not all(size.isascii() and size.isdigit() and len(size) < 12 for size in sizes):
        raise cannot_read(path, f"line 1 must give the numbers of rows, features and labels, got {first[:40]!r}")
    n, features, labels = map(int, sizes)
    if min(n, features, labels) < 1 or n * max(features, labels) > MOST:
        raise cannot_read(path, f"line 1 gives {n} rows of {features} features and {labels} labels, which will not do")
    if len(rows) != n:
        raise cannot_read(path, f"line 1 says {n} rows, and {len(rows)} follow")
    x, y = np.zeros((n, features), np.float32), np.zeros((n, labels), np.uint8)
    for row, text in enumerate(rows):
        line, pairs = row + 2, text.split()
        if pairs and not text[0].isspace() and ":" not in pairs[0]:
            for token in pairs.pop(0).split(","):
                y[row, _position(path, line, "label", token, labels)] = 1
        if pairs and _fill(x[row], pairs):
            continue
        for pair in pairs:
            position, colon, value = pair.partition(":")
            if not colon:
                raise cannot_read(path, f"line {line} holds {pair[:SHOWN]!r}, which is not feature:value")
            x[row, _position(path, line, "feature", position, features)] = number(path, f"line {line}", value)
    return x, y


def _fill(x: np.ndarray, pairs: list[str]) -> bool:
    """Fill one row at once, if it has no fault; return False if it has."""
    try:
        split = [pair.split(":") for pair in pairs]
        positions, values = [int(position) for position, _ in split], [float(value) for _, value in split]
    except ValueError:
        return False
    if min(positions) < 0 or max(positions) >= len(x) or not sum(map(abs, values)) <= LARGEST:
        return False
    x[positions] = values
    return True


def _position(path: FilePath, line: int, kind: str, token: str, count: int) -> int:
    if not (token.isascii() and token.isdigit() and len(token) < 12 and int(token) < count):
        allowed = f"and {kind}s are whole numbers from 0 to {count - 1}"
        raise cannot_read(path, f"line {line} holds {kind} {token[:SHOWN]!r}, {allowed}")
    return int(token)


def _from_bits(path: Path) -> Multilabel:
    names = [f"{name}_{part}" for part in ("train", "test") for name in "xy"]
    arrays = read_arrays(path, [*names, "n_features", "n_labels"])
    widths = {}
    for name, size in (("x", arrays["n_features"]), ("y", arrays["n_labels"])):
        if size.shape != () or size.dtype.kind not in "iu" or not 1 <= int(size) <= MOST:
            raise cannot_read(path, "'n_features' and 'n_labels' must be one whole number each")
        widths[name] = int(size)

    def unpacked(name: str) -> np.ndarray:
        packed, width, rows = arrays[name], widths[name[0]], arrays[f"x{name[1:]}"].shape[:1]
        expected = (*rows, -(-width // 8))
        if packed.dtype != np.uint8 or packed.shape != expected or not packed.size:
            raise cannot_read(path, f"{name!r} is not {width} packed bits a row")
        return np.unpackbits(packed, axis=1, count=width)

    x_train, y_train, x_test, y_test = (unpacked(name) for name in names)
    return Multilabel(x_train.astype(np.float32), y_train, x_test.astype(np.float32), y_test)
