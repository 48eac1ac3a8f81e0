"""The recall-first task: output the first of N numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .classification import Classification
from .synthetic import Draw, Synthetic
from .task import Batch, option


@dataclass(frozen=True)
class RecallFirst(Synthetic, Classification):
    """Output the first of N numbers below M after the last.

    The numbers are uniform in ``{0, ..., M - 1}``, and the model embeds them. Loss: cross entropy over M classes. All
    answers are equally likely, so the loss without memory is ``ln M`` (2.303 for M = 10). Metric: accuracy; 99 % counts
    as solved.

    Shapes:
        inputs ``(N, B)`` int64 below M; targets ``(B,)`` int64 below M.

    Args:
        length: N.
        symbols: M.
        embedding: width of the embedding.

        >>> task = RecallFirst(length=20)
        >>> inputs, targets, _ = task.batch(3, torch.Generator().manual_seed(0))
        >>> torch.equal(inputs[0], targets)
        True

    Reference: Lin and Wang, task I.
    """

    length: int = option(100, "numbers N in one sequence", whole=1)
    symbols: int = option(10, "different numbers M: 0 to M - 1", whole=2)
    embedding: int = option(30, "width of the embedding of a number", whole=1)

    name = "recall-first"
    solved_limit = 0.99

    @property
    def vocabulary(self) -> int:
        return self.symbols

    @property
    def input_size(self) -> int:
        return self.embedding

    @property
    def output_size(self) -> int:
        return self.symbols

    @property
    def baseline(self) -> float:
        return math.log(self.symbols)

    def draw(self, draw: Draw) -> Batch:
        numbers = draw.below(self.symbols, self.length)
        return Batch(numbers, numbers[0].clone())
