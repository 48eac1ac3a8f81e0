"""The long short-term memory cell whose gates read the memory."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.cells.cell import Change, unchanged
from evenflow.cells.lstm import LSTMStep


class PeepholeLSTM(LSTMStep):
    """`LSTMStep` with ``p_i c_{t-1}`` and ``p_f c_{t-1}`` added to the gates i and f, and ``p_o c_t`` to the gate o.

    Args:
        forget_bias: see `LSTMStep`.

    Weights: those of `LSTMStep`, and ``peephole`` ``(3H)``: p_i, p_f, p_o, one number per unit, zero at the start:
    a new cell is the plain one.

    >>> layer = Recurrent(cells.PeepholeLSTM(), 2, 128)  # the same as LSTM(2, 128, form="peephole")
    >>> output, (h_n, c_n) = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Gers and Schmidhuber 2000.
    """

    parameters = ("peephole",)
    equation = "c = σ(f + p c) c + σ(i + p c) tanh(g); h = σ(o + p c) tanh(c)"

    def settings(self) -> dict[str, object]:
        return {"form": "peephole"}

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {"peephole": torch.zeros(3 * hidden_size)}

    def step(  # type: ignore[override]
        self,
        a: Tensor,
        h: Tensor,
        c: Tensor,
        U: Tensor,
        p: Tensor,
        *,
        read: Change = unchanged,
        normal: Change = unchanged,
    ) -> tuple[Tensor, Tensor]:
        i, f, g, o = normal(a + read(h) @ U.mT, 4).chunk(4, -1)
        p_i, p_f, p_o = p.chunk(3, -1)
        c = (f + p_f * c).sigmoid() * c + (i + p_i * c).sigmoid() * g.tanh()
        return (o + p_o * c).sigmoid() * normal(c).tanh(), c
