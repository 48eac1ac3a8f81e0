"""The real-gated linear recurrent unit of Griffin."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from evenflow.cells.cell import Cell, Change, unchanged
from evenflow.checks import number

LEAST = 1e-12  # of 1 - λ², whose square root has no slope at 0


class RGLRUStep(Cell):
    """``h_t = λ h_{t-1} + √(1 - λ²) i n`` with ``λ = σ(decay)^(c r)``, from ``(σ⁻¹(r), σ⁻¹(i), n) = W_ih x_t + b``.

    Args:
        c: the exponent. Default: 8.

    Weights:
        weight_ih ``(3H, I)`` and bias ``(3H)``, in the order r, i, n; decay ``(H)``, so that ``σ(decay)^c`` is uniform
        from 0.9 to 0.999 at the start.

    Note on the input: in the paper a linear layer makes n, and r and i read n by block-diagonal matrices. Here all
    three read x.

    >>> layer = RGLRU(2, 128, c=4.0)  # the same as Recurrent(cells.RGLRUStep(c=4.0), 2, 128)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: De et al. 2024 (Griffin).
    """

    blocks = 3
    recurrent = ()
    parameters = ("decay",)
    equation = "h = λ h + √(1 - λ²) i (W x + b), λ = σ(p)^(c r), r and i gates of x"

    def __init__(self, c: float = 8.0) -> None:
        number("c", c, above=0)
        self.c = c

    def settings(self) -> dict[str, object]:
        return {"c": self.c}

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        kept = 0.9 + 0.099 * torch.rand(hidden_size, generator=generator, dtype=torch.float64)
        return {"decay": torch.logit(kept ** (1 / self.c)).float()}

    def step(self, a: Tensor, h: Tensor, decay: Tensor, *, normal: Change = unchanged) -> Tensor:
        r, i, n = normal(a, 3).chunk(3, -1)
        log = self.c * logsigmoid(decay) * r.sigmoid()
        share = (-torch.expm1(2 * log)).clamp(min=LEAST).sqrt()
        return log.exp() * h + share * i.sigmoid() * n
