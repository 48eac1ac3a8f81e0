"""The minimal LSTM of linear recurrences: its gates and its candidate read the input alone."""

from __future__ import annotations

from torch import Tensor

from evenflow.cells.cell import Change, unchanged
from evenflow.cells.min_gru import MinGRUStep


class MinLSTMStep(MinGRUStep):
    """``h_t = (f h_{t-1} + i g(n)) / (f + i)`` with ``(σ⁻¹(f), σ⁻¹(i), n) = W_ih x_t + b``.

    Args:
        candidate: g, as in `MinGRUStep`.

    Weights:
        weight_ih ``(3H, I)`` and bias ``(3H)``, in the order f, i, n.

    >>> layer = MinLSTM(2, 128)  # the same as Recurrent(cells.MinLSTMStep(), 2, 128)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Feng et al. 2024 (Were RNNs all we needed?).
    """

    blocks = 3
    equation = "h = (f h + i (W x + b)) / (f + i), f and i = σ(V x + c)"

    def step(self, a: Tensor, h: Tensor, *, normal: Change = unchanged) -> Tensor:
        f, i, n = normal(a, 3).chunk(3, -1)
        f, i = f.sigmoid(), i.sigmoid()
        return h + i / (f + i) * (self.g(n) - h)
