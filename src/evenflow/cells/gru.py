"""The gated recurrent unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from evenflow.cells.cell import Cell, Change, Matrix, unchanged


class GRUStep(Cell):
    """``h_t = (1 - z) n + z h_{t-1}`` with a candidate ``n = tanh(W_n x_t + b_n + r (U_n h_{t-1} + c))``.

    The gates are ``(r, z) = σ(W x_t + b + U h_{t-1})``. The layer's map makes U_n; the U of the gates is free.

    Weights:
        weight_ih ``(3H, I)`` and bias ``(3H)``, in torch's order r, z, n; weight_hh ``(2H, H)``, the U of the gates;
        weight_hh_n ``(H, H)``, the U_n of the candidate; bias_hh_n ``(H)``, its c, zero at the start.

    Note on the bias: torch has two bias vectors. Those of r and z appear only as a sum, so here they are one vector;
    the candidate's second vector is multiplied by r and cannot be merged. `test_equals_torch` copies torch's weights.

    Note on the gates: Cho et al. and Galvan have U_n (r h), torch and we r (U_n h); the uRNN document prints an r and
    then leaves it out of the candidate. The documents' update gate is our 1 - z.

    >>> layer = Recurrent(cells.GRUStep(), 2, 128)  # the same as GRU(2, 128)
    >>> [name for name, _ in layer.named_parameters()]
    ['weight_ih_l0', 'bias_l0', 'bias_hh_n_l0', 'weight_hh_l0', 'weight_hh_n_l0']

    References: Cho et al. 2014; the uRNN document (uGRU).
    """

    blocks = 3
    recurrent = ("weight_hh", "weight_hh_n")
    parameters = ("bias_hh_n",)
    letters: ClassVar[Mapping[str, str]] = {"weight_hh": "rz"}
    equation = "h = (1 - z) n + z h, n = tanh(W x + b + r (U h + c))"

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return Matrix("weight_hh", hidden_size, 2, mapped=False), Matrix("weight_hh_n", hidden_size)

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        weights = super().start(input_size, hidden_size, bias, generator)
        return weights | ({"bias_hh_n": torch.zeros(hidden_size)} if bias else {})

    def step(
        self,
        a: Tensor,
        h: Tensor,
        U: Tensor,
        U_n: Tensor,
        c: Tensor | None = None,
        *,
        read: Change = unchanged,
        normal: Change = unchanged,
    ) -> Tensor:
        a_gates, a_n = a.split([2 * h.shape[-1], h.shape[-1]], -1)
        r, z = normal(a_gates + read(h) @ U.mT, 2).sigmoid().chunk(2, -1)
        n = normal(a_n + r * torch.nn.functional.linear(read(h), U_n, c)).tanh()
        return (1 - z) * n + z * h
