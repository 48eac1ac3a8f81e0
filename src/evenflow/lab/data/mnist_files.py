"""MNIST: images of handwritten digits, from the idx files it is published as."""

from __future__ import annotations

import math
import os

import numpy as np

from evenflow.checks import one_of

from .catalog import CATALOG
from .folder import data_folder
from .guarded import cannot_read, read_bytes, read_gzip

PARTS = {"train": "train", "test": "t10k"}
SIDE, CLASSES = 28, 10
UNSIGNED_BYTE = 8  # idx's code for the type of the values
LIMIT = 1 << 26  # bytes; the largest of the four files has 47,040,016


def read_mnist(folder: str | os.PathLike[str] | None = None, part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Images and their labels, 60,000 to train on and 10,000 to test.

    Shapes:
        images ``(N, 28, 28)`` uint8, 0 is background; labels ``(N,)`` uint8 below 10.

    Args:
        folder: the data folder; see `data_folder` for what None means. The four files are expected in its ``mnist/``,
            packed (``.gz``) or not, or where torchvision puts them (``MNIST/raw/``).
        part: "train" or "test".

        >>> images, labels = read_mnist(part="test")
        >>> images.shape, labels[:5]
        ((10000, 28, 28), array([7, 2, 1, 0, 4], dtype=uint8))

    Raises:
        ValueError: a file is missing or damaged.

    Reference: LeCun et al. 1998.
    """
    one_of("part", part, PARTS)
    source, place = CATALOG["mnist"], data_folder(folder)
    images_at = source.locate(place, f"mnist/{PARTS[part]}-images-idx3-ubyte.gz")
    labels_at = source.locate(place, f"mnist/{PARTS[part]}-labels-idx1-ubyte.gz")
    images, labels = read_idx(images_at, 3, LIMIT), read_idx(labels_at, 1, LIMIT)
    if images.shape[1:] != (SIDE, SIDE):
        raise cannot_read(images_at, f"its images are {images.shape[1]} x {images.shape[2]}, not {SIDE} x {SIDE}")
    if len(images) != len(labels):
        raise cannot_read(labels_at, f"it has {len(labels):,} labels for {len(images):,} images")
    if (largest := int(labels.max())) >= CLASSES:
        raise cannot_read(labels_at, f"label {int(labels.argmax()) + 1:,} is {largest}, not a digit")
    return images, labels


def read_idx(path: str | os.PathLike[str], dimensions: int, limit: int) -> np.ndarray:
    """The array of an idx file of unsigned bytes, packed with gzip or not.

    idx: two zero bytes, the type, the number of dimensions, their sizes as four bytes each with the highest first,
    then the values, the last dimension fastest.

    Args:
        path: the file.
        dimensions: how many it must have.
        limit: the most bytes it may have, unpacked.
    """
    content = read_gzip(path, limit) if str(path).endswith(".gz") else read_bytes(path, limit)
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise cannot_read(path, "it ends within its heading, as an idx file")
    if content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTE:
        raise cannot_read(path, "it is not an idx file of bytes")
    if content[3] != dimensions:
        raise cannot_read(path, f"it has {content[3]} dimensions, not {dimensions}")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    if 0 in shape:
        raise cannot_read(path, f"the sizes {shape} in its heading leave it empty")
    if len(content) != (expected := start + math.prod(shape)):
        raise cannot_read(
            path, f"it has {len(content):,} bytes, and the sizes {shape} in its heading need {expected:,}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()  # a copy may be written to
