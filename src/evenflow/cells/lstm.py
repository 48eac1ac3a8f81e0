"""The long short-term memory cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from evenflow.cells.cell import Cell, Change, unchanged


class LSTMStep(Cell):
    """``c_t = σ(f) c_{t-1} + σ(i) tanh(g)``, ``h_t = σ(o) tanh(c_t)``, with (i, f, g, o) = W_ih x_t + b + W_hh h_{t-1}.

    Args:
        forget_bias: the starting value of the forget gate's bias; with 1 a new layer remembers.

    The gates are in torch's order, so that weights can be copied. Reference: Gers et al. 2000.

    >>> layer = Recurrent(cells.LSTMStep(forget_bias=2.0), 2, 128)  # the same as LSTM(2, 128, forget_bias=2.0)
    >>> output, (h_n, c_n) = layer(torch.randn(100, 8, 2))
    >>> c_n.shape
    torch.Size([1, 8, 128])
    """

    blocks = 4
    states = ("h", "c")
    letters: ClassVar[Mapping[str, str]] = {"weight_hh": "ifgo"}
    equation = "c = σ(f) c + σ(i) tanh(g); h = σ(o) tanh(c)"

    def __init__(self, forget_bias: float = 1.0) -> None:
        self.forget_bias = forget_bias

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        weights = super().start(input_size, hidden_size, bias, generator)
        if bias:
            weights["bias"][hidden_size : 2 * hidden_size] = self.forget_bias
        return weights

    def normalised(self, hidden_size: int) -> int:
        return 5 * hidden_size  # the four pre-activations, and c in the output

    def step(
        self, a: Tensor, h: Tensor, c: Tensor, U: Tensor, *, read: Change = unchanged, normal: Change = unchanged
    ) -> tuple[Tensor, Tensor]:
        i, f, g, o = normal(a + read(h) @ U.mT, 4).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * normal(c).tanh(), c
