"""Read CIFAR-10, small colour images, from the published binary files."""

from __future__ import annotations

import numpy as np

from evenflow.checks import one_of

from .catalog import CATALOG
from .folder import data_folder
from .guarded import FilePath, cannot_read, read_bytes

BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
SIDE, COLOURS, CLASSES = 32, 3, 10
RECORD = 1 + COLOURS * SIDE**2  # a label byte, then 1,024 bytes each of red, green and blue, row by row
LIMIT = 1 << 25  # bytes; a published file has 30,730,000


def read_cifar(folder: FilePath | None = None, part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of CIFAR-10: 50,000 for training, 10,000 for testing.

    Shapes:
        images ``(N, 3, 32, 32)`` uint8: red, green, blue; labels ``(N,)`` uint8 below 10.

    Args:
        folder: the data folder; see `data_folder` for the default. The six files are in its ``cifar-10-batches-bin/``,
            as the published archive unpacks them.
        part: "train" or "test".

    Raises:
        ValueError: a file is missing or damaged.

    Reference: Krizhevsky 2009.
    """
    one_of("part", part, BATCHES)
    place = data_folder(folder)
    read = [_read_batch(CATALOG["cifar10"].locate(place, f"cifar-10-batches-bin/{name}.bin")) for name in BATCHES[part]]
    records = np.concatenate(read)
    return records[:, 1:].reshape(-1, COLOURS, SIDE, SIDE), records[:, 0].copy()


def _read_batch(path: FilePath) -> np.ndarray:
    """The records ``(N, 3073)`` of one file."""
    content = read_bytes(path, LIMIT)
    if len(content) % RECORD:
        raise cannot_read(path, f"it has {len(content):,} bytes, not a multiple of {RECORD:,}, an image and a label")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    if (largest := int(records[:, 0].max())) >= CLASSES:
        raise cannot_read(path, f"label {int(records[:, 0].argmax()) + 1:,} is {largest}, not below {CLASSES}")
    return records
