"""The scalar long short-term memory cell with exponential gates (sLSTM)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from evenflow.cells.cell import Cell, Change, Matrix, unchanged
from evenflow.checks import number, whole_number


class SLSTMStep(Cell):
    """``c_t = f c_{t-1} + i tanh(g)``, ``n_t = f n_{t-1} + i``, ``h_t = σ(o) c_t / n_t``, with an exponential i.

    With (i~, f~, g, o) = W_ih x_t + b + W_hh h_{t-1} and the stabiliser ``m_t = max(log σ(f~) + m_{t-1}, i~)``, the
    gates are ``i = exp(i~ - m_t)`` and ``f = exp(log σ(f~) + m_{t-1} - m_t)``; h does not depend on m. The states are
    (h, c, n, m).

    Args:
        heads: blocks of the block-diagonal W_hh; units of one head do not read those of another. Default: 1.
        forget_bias: the starting value of the forget gate's bias. Default: 1.

    Weights:
        weight_ih ``(4H, I)`` and bias ``(4H)``, for each head in the order i, f, g, o; weight_hh ``(4H, H / heads)``.

    Note on the first step: where n is 0 nothing is stored yet, and m_t = i~, as in the authors' code.

    >>> layer = SLSTM(2, 128, heads=4)  # the same as Recurrent(cells.SLSTMStep(heads=4), 2, 128)
    >>> output, states = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Beck et al. 2024 (xLSTM).
    """

    blocks = 4
    states = ("h", "c", "n", "m")
    equation = "c = f c + i tanh(g), n = f n + i, h = σ(o) c / n; i = exp(.), f = σ(.), stabilised"

    def __init__(self, heads: int = 1, forget_bias: float = 1.0) -> None:
        whole_number("heads", heads, 1)
        number("forget_bias", forget_bias)
        self.heads, self.forget_bias = heads, forget_bias

    def settings(self) -> dict[str, object]:
        return {"heads": self.heads, "forget_bias": self.forget_bias}

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        if hidden_size % self.heads:
            raise ValueError(f"hidden_size must be a multiple of heads = {self.heads}, got {hidden_size}")
        return (Matrix("weight_hh", hidden_size // self.heads, 4 * self.heads, mapped=False),)

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        weights = super().start(input_size, hidden_size, bias, generator)
        if bias:
            weights["bias"].view(self.heads, 4, -1)[:, 1] = self.forget_bias
        return weights

    def step(
        self, a: Tensor, h: Tensor, c: Tensor, n: Tensor, m: Tensor, U: Tensor, *, read: Change = unchanged
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        size = U.shape[-1]
        parts = zip(
            a.split(4 * size, -1), *(s.split(size, -1) for s in (read(h), c, n, m)), U.split(4 * size), strict=True
        )
        heads = [self._head(*each) for each in parts]
        new = heads[0] if self.heads == 1 else tuple(torch.cat(parts, -1) for parts in zip(*heads, strict=True))
        return new[0], new[1], new[2], new[3]

    @staticmethod
    def _head(a: Tensor, h: Tensor, c: Tensor, n: Tensor, m: Tensor, U: Tensor) -> tuple[Tensor, ...]:
        i, f, g, o = (a + h @ U.mT).chunk(4, -1)
        kept = logsigmoid(f) + m
        m = torch.where(n == 0, i, torch.maximum(kept, i))
        i, f = (i - m).exp(), (kept - m).exp()
        c, n = f * c + i * g.tanh(), f * n + i
        return o.sigmoid() * c / n, c, n, m
