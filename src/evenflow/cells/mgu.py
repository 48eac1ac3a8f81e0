"""The minimal gated unit."""

from __future__ import annotations

from torch import Tensor

from evenflow.cells.cell import Cell, Change, Matrix, unchanged


class MGUStep(Cell):
    """``h_t = (1 - f) h_{t-1} + f tanh(W_n x_t + b_n + U_n (f h_{t-1}))`` with ``f = σ(W x_t + b + U h_{t-1})``.

    Weights:
        weight_ih ``(2H, I)`` and bias ``(2H)``, in the order f, n; weight_hh ``(H, H)``, the U of the gate, free;
        weight_hh_n ``(H, H)``, the U_n of the candidate, which the layer's map makes.

    >>> layer = MGU(2, 128)  # the same as Recurrent(cells.MGUStep(), 2, 128)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Zhou, Wu, Zhang and Zhou 2016.
    """

    blocks = 2
    recurrent = ("weight_hh", "weight_hh_n")
    equation = "h = (1 - f) h + f tanh(W x + b + U (f h)), f = σ(W x + b + U h)"

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return Matrix("weight_hh", hidden_size, mapped=False), Matrix("weight_hh_n", hidden_size)

    def step(
        self, a: Tensor, h: Tensor, U: Tensor, U_n: Tensor, *, read: Change = unchanged, normal: Change = unchanged
    ) -> Tensor:
        a_f, a_n = a.chunk(2, -1)
        f = normal(a_f + read(h) @ U.mT).sigmoid()
        return (1 - f) * h + f * normal(a_n + (f * read(h)) @ U_n.mT).tanh()
