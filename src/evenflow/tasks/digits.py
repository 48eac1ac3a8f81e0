"""The 8×8 digits that come with scikit-learn, read pixel by pixel: real data with no download."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from evenflow.checks import one_of, whole_number

from .classification import Classification
from .task import Batch, Task, move, option

ORDERS = ("ordered", "permuted")
PIXELS, CLASSES = 64, 10
BRIGHTEST = 16  # pixels are whole numbers from 0 to 16
HELD_OUT = 297  # of 1,797 images; 1,500 remain
SPLIT_SEED, PERMUTATION_SEED = 1, 2
SOLVED_ACCURACY = 0.95  # logistic regression, which sees all pixels at once, reaches 0.976 on this split


@dataclass(frozen=True)
class Digits(Classification):
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
    part: ClassVar[str] = "training"

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

    def held_out(self) -> Task:
        return _HeldOutDigits(self.order)

    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> Batch:
        whole_number("size", size, 1)
        pixels, labels = _part(self.part, self.order, generator.device)
        chosen = torch.randperm(len(labels), generator=generator, device=generator.device)[:size]
        return move(Batch(pixels[:, chosen, None], labels[chosen]), device)

    def solved(self, metric: float) -> bool:
        return metric >= SOLVED_ACCURACY


class _HeldOutDigits(Digits):
    part: ClassVar[str] = "held out"


@cache
def _part(part: str, order: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixels ``(64, N)`` and labels ``(N,)`` of one part, kept on the device they are drawn on."""
    images, labels = _load()
    # RandomState's stream is frozen for good, so the split and the order are the same on every machine.
    shuffled = np.random.RandomState(SPLIT_SEED).permutation(len(labels))
    rows = shuffled[:HELD_OUT] if part == "held out" else shuffled[HELD_OUT:]
    columns = np.random.RandomState(PERMUTATION_SEED).permutation(PIXELS) if order == "permuted" else np.arange(PIXELS)
    pixels = np.ascontiguousarray(images[np.ix_(rows, columns)].T, dtype=np.float32) / BRIGHTEST
    return torch.from_numpy(pixels).to(device), torch.from_numpy(labels[rows].astype(np.int64)).to(device)


def _load() -> tuple[np.ndarray, np.ndarray]:
    """Images ``(1797, 64)`` and labels ``(1797,)``."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ValueError("task digits needs scikit-learn, which `pip install evenflow[sklearn]` installs") from None
    return load_digits(return_X_y=True)
