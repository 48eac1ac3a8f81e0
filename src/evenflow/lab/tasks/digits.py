"""The 8×8 digits that come with scikit-learn, read pixel by pixel: real data with no download."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from evenflow.checks import one_of

from .data_set import split
from .labelled import Labelled
from .task import option

ORDERS = ("ordered", "permuted")
PIXELS, CLASSES = 64, 10
BRIGHTEST = 16  # pixels are whole numbers from 0 to 16
HELD_OUT = 297  # of 1,797 images; 1,500 remain
PERMUTATION_SEED = 2
SOLVED_ACCURACY = 0.95  # logistic regression, which sees all pixels at once, reaches 0.976 on this split


@dataclass(frozen=True)
class Digits(Labelled):
    """One pixel a step, row by row or in a fixed random order; after the 64th, which digit was it?

    1,797 images of handwritten digits, pixels scaled to [0, 1]. A fixed random split keeps 297 images for `held_out`;
    batches are drawn from the other 1,500, no image twice in a batch, and a batch larger than that is all of them.
    Loss: cross entropy over ten classes. The classes are as good as equally frequent (between 174 and 183 images each),
    so that the loss without memory is ``ln 10``. Metric: the share of right answers; 95 % counts as solved.

    Shapes:
        inputs ``(64, B, 1)``; targets ``(B,)`` int64 below 10.

    Args:
        order: "ordered", row by row from the top left; "permuted", one random order of the 64 pixels, the same for
            every image and every run.

        >>> task = Digits()
        >>> inputs, targets, _ = task.batch(3, torch.Generator().manual_seed(0))
        >>> inputs.shape, len(task.held_out().batch(1000, torch.Generator().manual_seed(0)).targets)
        (torch.Size([64, 3, 1]), 297)

    Reference: Alpaydin and Kaynak 1998.
    """

    order: str = option("ordered", "order of the pixels: ordered (row by row) or permuted (one fixed random order)")

    name: ClassVar[str] = "digits"
    scale: ClassVar[float] = 1 / BRIGHTEST

    def __post_init__(self) -> None:
        one_of("order", self.order, ORDERS)

    @property
    def input_size(self) -> int:
        return 1

    @property
    def output_size(self) -> int:
        return CLASSES

    @property
    def baseline(self) -> float:
        return math.log(CLASSES)

    def has_test(self) -> bool:
        return False

    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        images, labels = _load()
        rows = split(len(labels), HELD_OUT)[self.part == "validation"]
        columns = np.arange(PIXELS)
        if self.order == "permuted":
            columns = np.random.RandomState(PERMUTATION_SEED).permutation(PIXELS)
        return images[np.ix_(rows, columns)].astype(np.uint8)[..., None], labels[rows]

    def solved(self, metric: float) -> bool:
        return metric >= SOLVED_ACCURACY


def _load() -> tuple[np.ndarray, np.ndarray]:
    """Images ``(1797, 64)`` and labels ``(1797,)``."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError("task digits needs scikit-learn, which `pip install evenflow[sklearn]` installs") from None
    return load_digits(return_X_y=True)
