"""The cell of FastGRNN: a gate and a candidate that share their matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.cells.cell import Cell, Change, unchanged


class FastGRNNStep(Cell):
    """``h_t = (ζ (1 - z) + ν) tanh(p + b_n) + z h_{t-1}`` with ``z = σ(p + b_z)`` and ``p = W_ih x_t + W_hh h_{t-1}``.

    Weights:
        weight_ih ``(H, I)``; weight_hh ``(H, H)``; bias_gates ``(2H)``, b_z and b_n, one at the start; gate_zeta and
        gate_nu, each ``(1)``, with ζ = σ(gate_zeta) and ν = σ(gate_nu), 1 and -4 at the start.

    Note on starting values: they are those of the authors' code.

    >>> layer = FastGRNN(2, 128)  # the same as Recurrent(cells.FastGRNNStep(), 2, 128)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Kusupati et al. 2018.
    """

    parameters = ("gate_zeta", "gate_nu", "bias_gates")
    equation = "h = (ζ (1 - z) + ν) tanh(p + b) + z h, z = σ(p + c), p = W x + U h"

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        weights = super().start(input_size, hidden_size, False, generator)
        if bias:
            weights["bias_gates"] = torch.ones(2 * hidden_size)
        return weights | {"gate_zeta": torch.tensor([1.0]), "gate_nu": torch.tensor([-4.0])}

    def step(
        self,
        a: Tensor,
        h: Tensor,
        U: Tensor,
        zeta: Tensor,
        nu: Tensor,
        b: Tensor | None = None,
        *,
        read: Change = unchanged,
    ) -> Tensor:
        p = a + read(h) @ U.mT
        b_z, b_n = (0.0, 0.0) if b is None else b.chunk(2, -1)
        z = (p + b_z).sigmoid()
        return (zeta.sigmoid() * (1 - z) + nu.sigmoid()) * (p + b_n).tanh() + z * h
