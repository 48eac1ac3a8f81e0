"""The cell of liquid time-constant networks."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.cells.cell import Cell, Change, unchanged, without_gap
from evenflow.checks import whole_number


class LTCStep(Cell):
    """``h' = -(1/τ + f) h + f A`` with ``f = σ(W_ih x + b + W_hh h)``, over a time dt in which x is constant.

    The authors' solver takes `unfolds` steps of d = dt / unfolds: ``h ← (h + d f A) / (1 + d (1/τ + f))``. dt is the
    time since the step before, see `Recurrent.forward`; 1 if it is not given. h stays between the smallest and the
    largest of 0 and A.

    Args:
        unfolds: steps of the solver. Default: 6, as in the paper.

    Weights:
        weight_ih ``(H, I)``, weight_hh ``(H, H)``, bias ``(H)``; reversal ``(H)``, A, from N(0, 1) at the start; rate
        ``(H)``, with 1/τ = exp(rate), 0 at the start.

    Note: the paper's f is any network; this is that of its first algorithm. The authors' library has a model of single
    synapses in its place, with four numbers for each pair of units.

    >>> layer = LTC(2, 128, unfolds=3)  # the same as Recurrent(cells.LTCStep(unfolds=3), 2, 128)
    >>> dt = torch.rand(100, 8)  # the time since the step before
    >>> output, h_n = layer(torch.randn(100, 8, 2), dt=dt)
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Hasani et al. 2021.
    """

    timed = True
    parameters = ("reversal", "rate")
    equation = "h = (h + d f A) / (1 + d (1/τ + f)), f = σ(W x + b + U h), six times with d = dt / 6"

    def __init__(self, unfolds: int = 6) -> None:
        whole_number("unfolds", unfolds, 1)
        self.unfolds = unfolds

    def settings(self) -> dict[str, object]:
        return {"unfolds": self.unfolds}

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {"reversal": torch.randn(hidden_size, generator=generator), "rate": torch.zeros(hidden_size)}

    def step(self, a: Tensor, h: Tensor, U: Tensor, A: Tensor, rate: Tensor, *, read: Change = unchanged) -> Tensor:
        a, dt = without_gap(a, h.shape[-1])
        d, leak = dt / self.unfolds, rate.exp()
        for _ in range(self.unfolds):
            f = (a + read(h) @ U.mT).sigmoid()
            h = (h + d * f * A) / (1 + d * (leak + f))
        return h
