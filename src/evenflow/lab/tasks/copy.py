"""The copy task: remember ten symbols over T blanks and output them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .synthetic import Draw, Synthetic
from .task import Batch, option

CONVENTIONS = ("factorized", "spectral")
SOLVED_ACCURACY = 0.99


@dataclass(frozen=True)
class Copy(Synthetic):
    """Output the first n symbols of a sequence again after T blanks and a delimiter.

    A sequence has ``T + 2n`` steps: n symbols, ``T - 1`` blanks, the delimiter, n blanks. The target is blank up to the
    delimiter, then the n symbols in order. Loss: mean cross entropy over all ``T + 2n`` steps. Without memory the
    blanks can be predicted and each symbol costs ``ln p``, so the loss is ``n ln p / (T + 2n)``. Metric: the share of
    the last n outputs that are right; 99 % counts as solved.

    Shapes:
        inputs ``(T + 2n, B, p + 2)`` one-hot; targets ``(T + 2n, B)`` int64 below ``p + 1``.

    Args:
        length: T.
        convention: the order of the classes. "factorized": blank 0, symbols 1 to p, delimiter p + 1. "spectral":
            symbols 0 to p - 1, blank p, delimiter p + 1.
        symbols: p, the number of different symbols.
        items: n, the number of symbols to remember.

    Note: one document puts the delimiter after "T - 1 blanks, terminated at step T by a delimiter and 10 more blanks",
    the other at x_{T+10} of x_1 ... x_{T+20}. Both mean element T + 10 of T + 20, counted from 1, so the conventions
    differ in the order of the classes only.

        >>> task = Copy(length=5)
        >>> inputs, targets, _ = task.batch(2, torch.Generator().manual_seed(0))
        >>> inputs.shape, inputs.argmax(-1)[14].tolist()
        (torch.Size([25, 2, 10]), [9, 9])

    Reference: Hochreiter and Schmidhuber 1997; as used by Vorontsov et al. 2017 and Zhang et al. 2018.
    """

    length: int = option(100, "blanks T between the symbols and their recall", whole=1)
    convention: str = option(
        "factorized", "alphabet order: factorized (blank first) or spectral (symbols first)", choices=CONVENTIONS
    )
    symbols: int = option(8, "number of different symbols", whole=2)
    items: int = option(10, "number of symbols to remember", whole=1)

    name = "copy"
    problem = "classification"
    readout = "every"
    metric_name = "accuracy"
    higher_is_better = True
    solved_limit = SOLVED_ACCURACY

    @property
    def steps(self) -> int:
        """Steps of one sequence, ``T + 2n``."""
        return self.length + 2 * self.items

    @property
    def input_size(self) -> int:
        return self.symbols + 2

    @property
    def output_size(self) -> int:
        return self.symbols + 1  # the delimiter is never a target

    @property
    def baseline(self) -> float:
        return self.items * math.log(self.symbols) / self.steps

    def draw(self, draw: Draw) -> Batch:
        blank, first = (0, 1) if self.convention == "factorized" else (self.symbols, 0)
        shown = first + draw.below(self.symbols, self.items)
        classes = torch.full((self.steps, draw.size), blank, dtype=torch.int64, device=shown.device)
        targets = classes.clone()
        classes[: self.items] = shown
        classes[self.items + self.length - 1] = self.symbols + 1
        targets[-self.items :] = shown
        return Batch(F.one_hot(classes, self.input_size).float(), targets)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[-self.items :].argmax(-1) == targets[-self.items :]).float().mean()
