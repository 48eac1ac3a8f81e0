"""The 8×8 digits of scikit-learn, read pixel by pixel: real data without a download."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .data_set import split
from .labelled import Labelled
from .task import option

ORDERS = ("ordered", "permuted")
SIDE, PIXELS, CLASSES = 8, 64, 10
BRIGHTEST = 16  # pixels are whole numbers from 0 to 16
HELD_OUT = 297  # of 1,797 images are for validation
PERMUTATION_SEED = 2


@dataclass(frozen=True)
class Digits(Labelled):
    """Classify a digit after its 64 pixels, one pixel per step, row by row or in a fixed random order.

    1,797 images of handwritten digits, pixels scaled to [0, 1]. A fixed random split keeps 297 images for validation
    and 1,500 for training; there is no test part. Loss: cross entropy over ten classes. The classes are almost equally
    frequent (174 to 183 images each), so the loss without memory is ``ln 10``. Metric: accuracy; 95 % counts as solved.

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

    order: str = option(
        "ordered", "order of the pixels: ordered (row by row) or permuted (one fixed random order)", choices=ORDERS
    )

    name = "digits"
    solved_limit = 0.95  # logistic regression on all pixels at once reaches 0.976 on this split
    scale = 1 / BRIGHTEST
    input_size = 1
    output_size = CLASSES
    baseline = math.log(CLASSES)

    def has_test(self) -> bool:
        return False

    def picture(self, sequence: np.ndarray) -> np.ndarray:
        return sequence[np.argsort(self._order())].reshape(SIDE, SIDE)

    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        images, labels = _load()
        rows = split(len(labels), HELD_OUT)[self.part == "validation"]
        return images[np.ix_(rows, self._order())].astype(np.uint8)[..., None], labels[rows]

    def _order(self) -> np.ndarray:
        """The pixel of the image at each step."""
        if self.order == "ordered":
            return np.arange(PIXELS)
        return np.random.RandomState(PERMUTATION_SEED).permutation(PIXELS)


def _load() -> tuple[np.ndarray, np.ndarray]:
    """Images ``(1797, 64)`` and labels ``(1797,)``."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError("task digits needs scikit-learn, which `pip install evenflow[sklearn]` installs") from None
    return load_digits(return_X_y=True)
