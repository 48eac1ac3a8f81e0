"""MNIST read pixel by pixel, row by row or in a fixed random order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from evenflow.checks import one_of
from evenflow.data.mnist import read_mnist

from .data_set import FileData, split
from .labelled import Labelled
from .task import option

ORDERS = ("ordered", "permuted")
PIXELS, CLASSES, BRIGHTEST = 784, 10, 255
WIDTHS = (1, 2, 4, 7, 8, 14, 16, 28)
HELD_OUT = 12  # one training image in twelve: 5,000 of 60,000
PERMUTATION_SEED = 2
# The best one-layer orthogonal networks of the documents and their neighbours: 98.7 and 96.6 (expRNN, 512 units).
SOLVED_ACCURACY = {"ordered": 0.987, "permuted": 0.966}


@dataclass(frozen=True)
class Pixels(FileData, Labelled):
    """A few pixels of an MNIST image a step; after the last, which digit was it?

    784 pixels scaled to [0, 1], `width` of them a step: 784 steps, 392 with a width of 2, 28 rows with a width of 28.
    A fixed random 5,000 of the 60,000 training images are for validation, and the 10,000 test images for the test.
    Metric: the share of right answers; what a one-layer orthogonal network has reached counts as solved (98.7 % in
    order, 96.6 % permuted).

    Shapes:
        inputs ``(784 / width, B, width)``; targets ``(B,)`` int64 below 10.

    Args:
        order: "ordered", row by row from the top left; "permuted", one random order of the pixels, the same for every
            image and every run.
        width: pixels a step.
        data: the data folder.

        >>> task = Pixels(order="permuted", width=2)
        >>> task.batch(50, torch.Generator().manual_seed(0)).inputs.shape
        torch.Size([392, 50, 2])

    Reference: Le et al. 2015; LeCun et al. 1998.
    """

    order: str = option("ordered", "order of the pixels: ordered (row by row) or permuted (one fixed random order)")
    width: int = option(1, "pixels a step: 1 for 784 steps, 2 for 392")

    name: ClassVar[str] = "mnist"
    scale: ClassVar[float] = 1 / BRIGHTEST

    def __post_init__(self) -> None:
        one_of("order", self.order, ORDERS)
        if self.width not in WIDTHS:
            raise ValueError(f"width must be one of {', '.join(map(str, WIDTHS))}, got {self.width!r}")

    @property
    def input_size(self) -> int:
        return self.width

    @property
    def output_size(self) -> int:
        return CLASSES

    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        images, labels = _read(self.folder, "test" if self.part == "test" else "train")
        if self.part != "test":
            rows = split(len(labels), len(labels) // HELD_OUT)[self.part == "validation"]
            images, labels = images[rows], labels[rows]
        pixels = images.reshape(len(images), PIXELS)
        if self.order == "permuted":
            pixels = pixels[:, np.random.RandomState(PERMUTATION_SEED).permutation(PIXELS)]
        return pixels.reshape(len(images), PIXELS // self.width, self.width), labels

    def solved(self, metric: float) -> bool:
        return metric >= SOLVED_ACCURACY[self.order]


@lru_cache(maxsize=2)
def _read(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    return read_mnist(folder, part)
