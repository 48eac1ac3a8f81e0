"""The temporal order task: output the order in which a few special symbols appeared."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from evenflow.checks import whole_number

from .classification import Classification
from .synthetic import Draw, Synthetic
from .task import Batch, option

DISTRACTORS = 4  # a, b, c, d
SPECIAL = 2  # x, y
COUNTS = (2, 3)
SOLVED_ACCURACY = 0.99


@dataclass(frozen=True)
class TemporalOrder(Synthetic, Classification):
    """Output the order of two or three special symbols, each x or y, among T distractors.

    The distractors are a, b, c, d; the n special symbols stand at n different steps, drawn uniformly. The target is one
    of ``2ⁿ`` classes: a binary number with x = 0, y = 1 and the first symbol first (xx 0, xy 1, yx 2, yy 3). Loss:
    cross entropy. All classes are equally likely, so the loss without memory is ``n ln 2`` and the accuracy ``2⁻ⁿ``.
    Metric: accuracy; above 99 % counts as solved.

    Shapes:
        inputs ``(T, B, 6)`` one-hot in the order a, b, c, d, x, y; targets ``(B,)`` int64 below ``2ⁿ``.

    Args:
        length: T, at least n.
        symbols: n, 2 or 3.

        >>> task = TemporalOrder(length=100)
        >>> inputs, targets, _ = task.batch(3, torch.Generator().manual_seed(0))
        >>> inputs[..., 4:].sum((0, 2)).tolist()
        [2.0, 2.0, 2.0]

    Note: the special symbols may stand anywhere, as in Galvan's document. Hochreiter and Schmidhuber keep each to a
    range of about ten steps.

    Reference: Hochreiter and Schmidhuber 1997; as used by Galvan.
    """

    length: int = option(100, "steps T of one sequence")
    symbols: int = option(2, "special symbols to put in order: 2 or 3")

    name = "temporal-order"
    input_size = DISTRACTORS + SPECIAL
    solved_limit = SOLVED_ACCURACY
    limit_excluded = True

    def __post_init__(self) -> None:
        if not isinstance(self.symbols, int) or self.symbols not in COUNTS:
            raise ValueError(f"symbols must be 2 or 3, got {self.symbols!r}")
        whole_number("length", self.length, self.symbols)

    @property
    def output_size(self) -> int:
        return SPECIAL**self.symbols

    @property
    def baseline(self) -> float:
        return math.log(self.output_size)

    def draw(self, draw: Draw) -> Batch:
        places = draw.places(self.symbols, self.length)
        special = draw.below(SPECIAL, self.symbols)
        classes = draw.below(DISTRACTORS, self.length).scatter_(0, places, DISTRACTORS + special)
        targets = torch.zeros_like(special[0])
        for symbol in special:
            targets = SPECIAL * targets + symbol
        return Batch(F.one_hot(classes, self.input_size).float(), targets)
