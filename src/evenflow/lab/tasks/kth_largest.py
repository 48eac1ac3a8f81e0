"""The k-th largest task: output the k-th largest of N numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .classification import Classification
from .synthetic import Draw, Synthetic
from .task import Batch, option


@dataclass(frozen=True)
class KthLargest(Synthetic, Classification):
    """Output the k-th largest of N numbers below N after the last.

    The numbers are uniform in ``{0, ..., N - 1}``, drawn with replacement; a repeated number counts each time, so the
    2nd largest of 7, 7, 1 is 7. The model embeds the numbers. Loss: cross entropy over N classes. The answer Y is at
    most v if fewer than k numbers exceed v, ``P(Y ≤ v) = P(Binomial(N, 1 - (v + 1)/N) < k)``, and the loss without
    memory is the entropy of Y. Metric: accuracy; 99 % counts as solved.

    Shapes:
        inputs ``(N, B)`` int64 below N; targets ``(B,)`` int64 below N.

    Args:
        length: N, at least 2.
        k: 1 for the largest, N for the smallest.
        embedding: width of the embedding.

    Note: the document says "a sequence of N numbers from 0 to N-1 inclusive". Without replacement the sequence would be
    a permutation and the answer always N - k, so numbers are drawn with replacement.

        >>> task = KthLargest(length=100, k=10)
        >>> inputs, targets, _ = task.batch(3, torch.Generator().manual_seed(0))
        >>> torch.equal(inputs.sort(0, descending=True).values[9], targets)
        True

    Reference: Lin and Wang, task II.
    """

    length: int = option(100, "numbers N in one sequence, each from 0 to N - 1", whole=2)
    k: int = option(10, "1 asks for the largest, N for the smallest", whole=1)
    embedding: int = option(30, "width of the embedding of a number", whole=1)

    name = "kth-largest"
    solved_limit = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k > self.length:
            raise ValueError(f"k must be at most length, {self.length}, got {self.k}")

    @property
    def vocabulary(self) -> int:
        return self.length

    @property
    def input_size(self) -> int:
        return self.embedding

    @property
    def output_size(self) -> int:
        return self.length

    @property
    def baseline(self) -> float:
        p = self.answers()
        return float(-torch.xlogy(p, p).sum())

    def answers(self) -> Tensor:
        """P(Y = v) for v = 0 ... N - 1, in double precision."""
        n = self.length
        above = torch.arange(n - 1, -1, -1, dtype=torch.float64) / n
        at_most = torch.zeros_like(above)
        for j in range(self.k):
            ways = math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1)
            at_most += torch.exp(ways + torch.xlogy(j, above) + torch.xlogy(n - j, 1 - above))
        # Rounding may make a difference of two numbers near one negative.
        return torch.diff(at_most, prepend=at_most.new_zeros(1)).clamp(min=0)

    def draw(self, draw: Draw) -> Batch:
        numbers = draw.below(self.length, self.length)
        return Batch(numbers, numbers.sort(0, descending=True).values[self.k - 1].clone())
