"""The adaptively saturated recurrent cell (asRNN)."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from evenflow.cells.cell import Cell, Change, Matrix, Weights, unchanged
from evenflow.checks import number

LEAST = 0.01  # added to |d|, so that W_f has an inverse


class AdaptiveSaturated(Cell):
    """``h_t = W_f⁻¹ tanh(W_f (W_ih x_t + b + W_hh h_{t-1}))`` with ``W_f = F diag(s)``, F orthogonal, s = |d| + 0.01.

    A small s makes the unit nearly linear, a large one saturates. With an orthogonal W_hh norms are kept where
    the units are linear.

    Args:
        saturation: the starting value of s. Default: 1.

    Weights:
        weight_ih ``(H, I)``; bias ``(H)``; weight_hh and weight_ff ``(H, H)``, the W_hh and the F, both from the
        layer's map; saturation ``(H)``, the d.

    >>> layer = AdaptiveSaturatedRNN(2, 128, map="exponential")
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Nguyen-Duy, Pham and Nguyen 2023.
    """

    recurrent = ("weight_in", "weight_out")
    equation = "h = V⁻¹ tanh(V (W x + b + U h)), V = F diag(s)"

    def __init__(self, saturation: float = 1.0) -> None:
        number("saturation", saturation, above=LEAST)
        self.saturation = saturation

    @property
    def fed_back(self) -> tuple[str, ...]:
        return ("weight_hh",)

    def settings(self) -> dict[str, object]:
        return {"saturation": self.saturation}

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return Matrix("weight_hh", hidden_size), Matrix("weight_ff", hidden_size)

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {"saturation": torch.full((hidden_size,), self.saturation - LEAST)}

    def prepare(self, weights: Weights) -> Weights:
        """The products of W_f with the other weights, computed once for all steps."""
        F, s = weights["weight_ff"], weights["saturation"].abs() + LEAST
        with nullcontext() if F.is_meta else torch.autocast(F.device.type, enabled=False):
            V = F * s.unsqueeze(-2)
            ready = {**weights, "weight_in": V @ weights["weight_hh"], "weight_out": F.mT / s.unsqueeze(-1)}
            if "weight_ih" in weights:
                ready["weight_ih"] = V @ weights["weight_ih"]
            if "bias" in weights:
                ready["bias"] = (V @ weights["bias"].unsqueeze(-1)).squeeze(-1)
            return ready

    def step(self, a: Tensor, h: Tensor, U: Tensor, out: Tensor, *, read: Change = unchanged) -> Tensor:
        return (a + read(h) @ U.mT).tanh() @ out.mT
