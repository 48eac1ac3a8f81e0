"""The XOR task: remember two marked bits of a long sequence and output whether they differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from .synthetic import Draw, Marked, draw_places, with_markers
from .task import Batch


@dataclass(frozen=True)
class Xor(Marked):
    """Output the exclusive or of the two marked bits after the last step.

    The input of a step is a bit and a marker, ``x_t = (u_t, c_t)``; the target is ``u_i xor u_j``. Each sequence has
    its own length L, uniform in ``[T, T + T/10]``; i is in the first ``L/10`` steps, j in ``[4L/10, 5L/10]``, counted
    from 0. Loss: cross entropy of the one output, a logit. Both answers are equally likely, even if one of the two bits
    is known, so the loss without memory is ``ln 2``. Metric: accuracy; above 99 % counts as solved.

    Shapes:
        inputs ``(T + ⌊T/10⌋, B, 2)`` with lengths ``(B,)``, zero past them; targets ``(B, 1)``, 0 or 1.

    Args:
        length: T, at least 10.

        >>> task = Xor(length=100)
        >>> inputs, targets, lengths = task.batch(3, torch.Generator().manual_seed(0))
        >>> torch.equal((inputs[..., 0] * inputs[..., 1]).sum(0) % 2, targets[:, 0])
        True

    Reference: Martens and Sutskever 2011; lengths and places as in Galvan.
    """

    name = "xor"
    baseline = math.log(2)

    def draw(self, draw: Draw) -> Batch:
        lengths, places = draw_places(self.length, draw)
        bits = draw.below(2, self.length + self.length // 10)
        targets = bits.gather(0, places).sum(0) % 2
        return Batch(with_markers(bits.float(), places, lengths), targets[:, None].float(), lengths)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs > 0) == (targets > 0)).float().mean()
