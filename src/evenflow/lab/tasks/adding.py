"""The adding task: remember two marked numbers of a long sequence and add them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.checks import whole_number

from .synthetic import LEAST_MARKED, SOLVED_ACCURACY, TOLERANCE, Draw, Synthetic, draw_places, with_markers
from .task import Batch, option

VARIANTS = ("sgornn", "factorized", "galvan")
LEAST_LENGTH = {"sgornn": 2, "factorized": 2, "galvan": LEAST_MARKED}
SOLVED_ERROR = 1e-3  # far below what a sum of one number and a guess can reach (1/12)


@dataclass(frozen=True)
class Adding(Synthetic):
    """Output the sum of the two marked numbers after the last step.

    The input of a step is a number and a marker, ``x_t = (u_t, c_t)``; c is 1 at two positions i < j and 0 elsewhere.
    Loss: mean squared error. Without memory the best output is the mean of the target, and the loss is its variance,
    1/6 in every variant. Positions are counted from 0.

    - "sgornn": u in [0, 1), target ``u_i + u_j``; i in the first ``⌊T/2⌋`` steps, j in the rest.
    - "factorized": the same with i in ``[0, T/2 - 1]`` and j in ``[T/2, T - 1]``: for odd T the middle step is never
      marked.
    - "galvan": u in [-1, 1), target ``(u_i + u_j) / 2``; each sequence has its own length L, uniform in
      ``[T, T + T/10]``, i in the first ``L/10`` steps, j in ``[4L/10, 5L/10]``. Steps past L are zero.

    Metric: mean squared error; below 0.001 counts as solved. For "galvan" it is the share of outputs within
    0.04 of the target, and above 99 % counts as solved.

    Shapes:
        inputs ``(T, B, 2)``, for "galvan" ``(T + ⌊T/10⌋, B, 2)`` with lengths ``(B,)``; targets ``(B, 1)``.

    Args:
        length: T, at least 2, for "galvan" at least 10.
        variant: "sgornn", "factorized" or "galvan".

        >>> task = Adding(length=200)
        >>> inputs, targets, _ = task.batch(3, torch.Generator().manual_seed(0))
        >>> torch.equal((inputs[..., 0] * inputs[..., 1]).sum(0), targets[:, 0])
        True

    Reference: Hochreiter and Schmidhuber 1997.
    """

    length: int = option(200, "steps T of one sequence")
    variant: str = option("sgornn", "whose rules: sgornn, factorized or galvan", choices=VARIANTS)

    name = "adding"
    readout = "last"
    input_size = 2
    output_size = 1
    limit_excluded = True
    baseline = 1 / 6  # Var(u_i + u_j) = 2/12 on [0, 1); Var((u_i + u_j)/2) = (4/12 + 4/12)/4 on [-1, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("length", self.length, LEAST_LENGTH[self.variant])

    @property
    def metric_name(self) -> str:
        return "accuracy" if self.variant == "galvan" else "mse"

    @property
    def higher_is_better(self) -> bool:
        return self.variant == "galvan"

    def draw(self, draw: Draw) -> Batch:
        if self.variant == "galvan":
            lengths, places = draw_places(self.length, draw)
            numbers = 2 * draw.unit(self.length + self.length // 10) - 1
            targets = numbers.gather(0, places).mean(0)
            return Batch(with_markers(numbers, places, lengths), targets[:, None], lengths)
        half = self.length // 2
        odd = self.length % 2 if self.variant == "factorized" else 0
        places = torch.stack((draw.whole(0, half - 1), draw.whole(half + odd, self.length - 1)))
        numbers = draw.unit(self.length)
        return Batch(with_markers(numbers, places), numbers.gather(0, places).sum(0)[:, None])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.variant == "galvan":
            return ((outputs - targets).abs() < TOLERANCE).float().mean()
        return F.mse_loss(outputs, targets)

    @property
    def solved_limit(self) -> float:
        return SOLVED_ACCURACY if self.variant == "galvan" else SOLVED_ERROR
