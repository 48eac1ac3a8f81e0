"""The adding task: remember two marked numbers of a long sequence and add them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.checks import one_of, whole_number

from .task import Batch, Task, move, option

VARIANTS = ("sgornn", "factorized", "galvan")
LEAST_LENGTH = {"sgornn": 2, "factorized": 2, "galvan": 10}
TOLERANCE = 0.04  # galvan: an answer this near is right
SOLVED_ACCURACY = 0.99  # galvan: solved when under 1 % are wrong
SOLVED_SHARE = 0.1  # sgornn: "considerably" below the baseline, read as a tenth of it


@dataclass(frozen=True)
class Adding(Task):
    """Two of T numbers are marked; after the last step, answer with their sum.

    Each step brings a number and a marker, ``x_t = (u_t, c_t)``; c is 1 at two positions i < j and 0 elsewhere. Loss:
    mean squared error. Without memory the best answer is the mean of the target and the loss its variance, 1/6 in
    every variant. Positions below count from 0.

    - "sgornn": u in [0, 1), target ``u_i + u_j``; i in the first ``⌊T/2⌋`` steps, j in the rest.
    - "factorized": the same with i in ``[0, T/2 - 1]`` and j in ``[T/2, T - 1]``: for odd T the middle step is never
      marked.
    - "galvan": u in [-1, 1), target ``(u_i + u_j) / 2``; each sequence has its own length L, uniform in
      ``[T, T + T/10]``, i in the first ``L/10`` steps, j in ``[4L/10, 5L/10]``. Steps past L are zero.

    The metric is the mean squared error, and a tenth of the baseline counts as solved; for "galvan" it is the share of
    answers within 0.04, and 99 % counts as solved.

    Shapes:
        inputs ``(T, B, 2)``, for "galvan" ``(T + ⌊T/10⌋, B, 2)`` with lengths ``(B,)``; targets ``(B, 1)``.

    Args:
        length: T, at least 2, for "galvan" at least 10.
        variant: which document's rules.

        >>> task = Adding(length=200)
        >>> inputs, targets, _ = task.batch(3, torch.Generator().manual_seed(0))
        >>> torch.equal((inputs[..., 0] * inputs[..., 1]).sum(0), targets[:, 0])
        True

    Reference: Hochreiter and Schmidhuber 1997.
    """

    length: int = option(200, "steps T of one sequence")
    variant: str = option("sgornn", "whose rules: sgornn, factorized or galvan")

    name: ClassVar[str] = "adding"
    readout: ClassVar[str] = "last"

    def __post_init__(self) -> None:
        one_of("variant", self.variant, VARIANTS)
        whole_number("length", self.length, LEAST_LENGTH[self.variant])

    @property
    def input_size(self) -> int:
        return 2

    @property
    def output_size(self) -> int:
        return 1

    @property
    def metric_name(self) -> str:
        return "accuracy" if self.variant == "galvan" else "mse"

    @property
    def higher_is_better(self) -> bool:
        return self.variant == "galvan"

    @property
    def baseline(self) -> float:
        # Var(u_i + u_j) = 2/12 on [0, 1); Var((u_i + u_j)/2) = (4/12 + 4/12)/4 on [-1, 1).
        return 1 / 6

    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> Batch:
        whole_number("size", size, 1)
        draw = _Draw(size, generator)
        if self.variant == "galvan":
            longest = self.length + self.length // 10
            lengths = draw.whole(torch.full((size,), self.length, device=generator.device), longest)
            first = draw.whole(torch.zeros_like(lengths), lengths // 10 - 1)
            second = draw.whole(-(-4 * lengths // 10), lengths // 2)
            numbers = 2 * draw.unit(longest) - 1
        else:
            half = self.length // 2
            odd = self.length % 2 if self.variant == "factorized" else 0
            first = draw.whole(torch.zeros(size, dtype=torch.int64, device=generator.device), half - 1)
            second = draw.whole(torch.full((size,), half + odd, device=generator.device), self.length - 1)
            numbers = draw.unit(self.length)
        markers = torch.zeros_like(numbers).scatter_(0, torch.stack((first, second)), 1.0)
        targets = numbers.gather(0, torch.stack((first, second))).sum(0)
        if self.variant != "galvan":
            return move(Batch(torch.stack((numbers, markers), -1), targets[:, None]), device)
        inside = torch.arange(numbers.shape[0], device=generator.device)[:, None] < lengths
        return move(Batch(torch.stack((numbers * inside, markers), -1), targets[:, None] / 2, lengths), device)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.variant == "galvan":
            return ((outputs - targets).abs() < TOLERANCE).float().mean()
        return F.mse_loss(outputs, targets)

    def solved(self, metric: float) -> bool:
        if self.variant == "galvan":
            return metric > SOLVED_ACCURACY
        return metric < SOLVED_SHARE * self.baseline


class _Draw:
    """Random draws for a batch of `size`, all from one generator and on its device."""

    def __init__(self, size: int, generator: torch.Generator) -> None:
        self.size, self.generator = size, generator

    def unit(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1) of shape ``(*shape, size)``."""
        return torch.rand(*shape, self.size, generator=self.generator, device=self.generator.device)

    def whole(self, low: Tensor, high: Tensor | int) -> Tensor:
        """Whole numbers, uniform from `low` to `high` inclusive, one for each sequence."""
        count = high - low + 1
        # The product may round up to `count` itself, hence the clamp.
        return low + torch.minimum((self.unit() * count).long(), count - 1)
