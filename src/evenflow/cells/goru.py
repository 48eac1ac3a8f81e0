"""The gated orthogonal recurrent unit."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow import activations
from evenflow.cells.cell import Cell, Change, unchanged
from evenflow.cells.gru import GRUStep


class GORUStep(GRUStep):
    """``h_t = (1 - z) modrelu(W_n x_t + r (U_n h_{t-1})) + z h_{t-1}``, with (r, z) = σ(W x_t + b + U h_{t-1}).

    A GRU whose candidate has modrelu in place of tanh. The layer's map makes U_n, which is orthogonal in the paper.

    Args:
        activation: that of the candidate. Default: ``"modrelu"``.

    Weights: those of `GRUStep` without bias_hh_n, and ``activation``, if the activation has parameters.

    >>> layer = GORU(2, 128, map="rotations")
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Jing et al. 2019.
    """

    parameters = ("activation",)
    equation = "h = (1 - z) n + z h, n = modrelu(W x + b + r (U h))"
    start = Cell.start

    def __init__(self, activation: activations.ActivationChoice = "modrelu") -> None:
        self.activation = activations.make(activation)

    def settings(self) -> dict[str, object]:
        return {"activation": self.activation.key}

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        return self.activation.weights(hidden_size, generator)

    def step(
        self,
        a: Tensor,
        h: Tensor,
        U: Tensor,
        U_n: Tensor,
        p: Tensor | None = None,
        *,
        read: Change = unchanged,
        normal: Change = unchanged,
    ) -> Tensor:
        a_gates, a_n = a.split([2 * h.shape[-1], h.shape[-1]], -1)
        r, z = normal(a_gates + read(h) @ U.mT, 2).sigmoid().chunk(2, -1)
        return (1 - z) * self.activation(normal(a_n + r * (read(h) @ U_n.mT)), p) + z * h
