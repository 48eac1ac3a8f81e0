"""The update gate recurrent cell."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.cells.cell import Cell, Change, Matrix, unchanged
from evenflow.checks import number


class UGRNNStep(Cell):
    """``h_t = g h_{t-1} + (1 - g) tanh(W_n x_t + b_n + U_n h_{t-1})`` with one gate ``g = σ(W x_t + b + U h_{t-1})``.

    Args:
        gate_bias: the starting value of the gate's bias; with 1, as in the paper, a new layer remembers.

    Weights:
        weight_ih ``(2H, I)`` and bias ``(2H)``, in the order g, n; weight_hh ``(H, H)``, the U of the gate, free;
        weight_hh_n ``(H, H)``, the U_n of the candidate, which the layer's map makes.

    >>> layer = UGRNN(2, 128)  # the same as Recurrent(cells.UGRNNStep(), 2, 128)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Collins, Sohl-Dickstein and Sussillo 2017.
    """

    blocks = 2
    recurrent = ("weight_hh", "weight_hh_n")
    equation = "h = g h + (1 - g) tanh(W x + b + U h), g = σ(W x + b + U h)"

    def __init__(self, gate_bias: float = 1.0) -> None:
        number("gate_bias", gate_bias)
        self.gate_bias = gate_bias

    def settings(self) -> dict[str, object]:
        return {"gate_bias": self.gate_bias}

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return Matrix("weight_hh", hidden_size, mapped=False), Matrix("weight_hh_n", hidden_size)

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        weights = super().start(input_size, hidden_size, bias, generator)
        if bias:
            weights["bias"][:hidden_size] = self.gate_bias
        return weights

    def step(
        self, a: Tensor, h: Tensor, U: Tensor, U_n: Tensor, *, read: Change = unchanged, normal: Change = unchanged
    ) -> Tensor:
        a_g, a_n = a.chunk(2, -1)
        g = normal(a_g + read(h) @ U.mT).sigmoid()
        return g * h + (1 - g) * normal(a_n + read(h) @ U_n.mT).tanh()
