"""The minimal GRU of linear recurrences: its gate and its candidate read the input alone."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.cells.cell import Cell, Change, unchanged
from evenflow.checks import one_of

CANDIDATES = ("identity", "positive")


class MinGRUStep(Cell):
    """``h_t = (1 - z) h_{t-1} + z g(n)`` with ``(σ⁻¹(z), n) = W_ih x_t + b``.

    Args:
        candidate: g: ``"identity"`` (default); or ``"positive"``, n + 1/2 for n >= 0 and else σ(n), as in the paper's
            version in logarithms, whose states are positive.

    Weights:
        weight_ih ``(2H, I)`` and bias ``(2H)``, in the order z, n.

    >>> layer = MinGRU(2, 128)  # the same as Recurrent(cells.MinGRUStep(), 2, 128)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Feng et al. 2024 (Were RNNs all we needed?).
    """

    blocks = 2
    recurrent = ()
    equation = "h = (1 - z) h + z (W x + b), z = σ(V x + c)"

    def __init__(self, candidate: str = "identity") -> None:
        one_of("candidate", candidate, CANDIDATES)
        self.candidate = candidate

    def settings(self) -> dict[str, object]:
        return {"candidate": self.candidate}

    def step(self, a: Tensor, h: Tensor, *, normal: Change = unchanged) -> Tensor:
        z, n = normal(a, 2).chunk(2, -1)
        return h + z.sigmoid() * (self.g(n) - h)

    def g(self, n: Tensor) -> Tensor:
        """The function of the candidate."""
        return n if self.candidate == "identity" else torch.where(n >= 0, n + 0.5, n.sigmoid())
