"""The multiplication task: remember two marked numbers of a long sequence and multiply them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from .synthetic import TOLERANCE, Draw, Marked, draw_places, with_markers
from .task import Batch


@dataclass(frozen=True)
class Multiplication(Marked):
    """Output the product of the two marked numbers after the last step.

    The input of a step is a number in [0, 1) and a marker, ``x_t = (u_t, c_t)``; the target is ``u_i u_j``. Each
    sequence has its own length L, uniform in ``[T, T + T/10]``; i is in the first ``L/10`` steps, j in ``[4L/10,
    5L/10]``, counted from 0. Loss: mean squared error. Without memory the best output is the mean 1/4, and the loss is
    the variance ``E[u²]² - E[u]⁴ = 1/9 - 1/16 = 7/144``. Metric: the share of outputs within 0.04 of the target; above
    99 % counts as solved.

    Shapes:
        inputs ``(T + ⌊T/10⌋, B, 2)`` with lengths ``(B,)``, zero past them; targets ``(B, 1)``.

    Args:
        length: T, at least 10.

        >>> task = Multiplication(length=100)
        >>> inputs, targets, lengths = task.batch(3, torch.Generator().manual_seed(0))
        >>> torch.equal(inputs[..., 0].masked_fill(inputs[..., 1] == 0, 1).prod(0), targets[:, 0])
        True

    Reference: Hochreiter and Schmidhuber 1997; lengths and places as in Galvan.
    """

    name = "multiplication"
    baseline = 7 / 144

    def draw(self, draw: Draw) -> Batch:
        lengths, places = draw_places(self.length, draw)
        numbers = draw.unit(self.length + self.length // 10)
        targets = numbers.gather(0, places).prod(0)
        return Batch(with_markers(numbers, places, lengths), targets[:, None], lengths)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets).abs() < TOLERANCE).float().mean()
