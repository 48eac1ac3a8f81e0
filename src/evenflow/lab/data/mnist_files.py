"""Read MNIST and Fashion-MNIST, grey images of digits and of clothes, from the published idx files."""

from __future__ import annotations

import math

import numpy as np

from evenflow.checks import one_of

from .catalog import CATALOG
from .folder import data_folder
from .guarded import FilePath, cannot_read, read_bytes, read_gzip

PARTS = {"train": "train", "test": "t10k"}
SETS = ("mnist", "fashion-mnist")
SIDE, CLASSES = 28, 10
UNSIGNED_BYTE = 8  # the code of this type in an idx file
LIMIT = 1 << 26  # bytes; the largest of the four files has 47,040,016


def read_mnist(
    folder: FilePath | None = None, part: str = "train", name: str = "mnist"
) -> tuple[np.ndarray, np.ndarray]:
    """The images and labels of MNIST or Fashion-MNIST: 60,000 for training, 10,000 for testing.

    Shapes:
        images ``(N, 28, 28)`` uint8, 0 is background; labels ``(N,)`` uint8 below 10.

    Args:
        folder: the data folder; see `data_folder` for the default. The four files are in its ``mnist/``, compressed
            (``.gz``) or not, or where torchvision puts them (``MNIST/raw/``); those of Fashion-MNIST are in
            ``fashion-mnist/`` or ``FashionMNIST/raw/``.
        part: "train" or "test".
        name: "mnist" or "fashion-mnist".

        >>> images, labels = read_mnist(part="test")
        >>> images.shape, labels[:5]
        ((10000, 28, 28), array([7, 2, 1, 0, 4], dtype=uint8))

    Raises:
        ValueError: a file is missing or damaged.

    References: LeCun et al. 1998; Xiao, Rasul and Vollgraf 2017.
    """
    one_of("part", part, PARTS)
    one_of("name", name, SETS)
    source, place = CATALOG[name], data_folder(folder)
    images_at = source.locate(place, f"{name}/{PARTS[part]}-images-idx3-ubyte.gz")
    labels_at = source.locate(place, f"{name}/{PARTS[part]}-labels-idx1-ubyte.gz")
    images, labels = read_idx(images_at, 3, LIMIT), read_idx(labels_at, 1, LIMIT)
    if images.shape[1:] != (SIDE, SIDE):
        raise cannot_read(images_at, f"its images are {images.shape[1]} x {images.shape[2]}, not {SIDE} x {SIDE}")
    if len(images) != len(labels):
        raise cannot_read(labels_at, f"it has {len(labels):,} labels for {len(images):,} images")
    if (largest := int(labels.max())) >= CLASSES:
        raise cannot_read(labels_at, f"label {int(labels.argmax()) + 1:,} is {largest}, not a digit")
    return images, labels


def read_idx(path: FilePath, dimensions: int, limit: int) -> np.ndarray:
    """The array in an idx file of unsigned bytes, compressed with gzip or not.

    The idx format: two zero bytes, the type, the number of dimensions, their sizes as big-endian 32-bit numbers, then
    the values in C order.

    Args:
        path: the file.
        dimensions: the number of dimensions that it must have.
        limit: the most bytes that it may have, decompressed.
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
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()  # writable
