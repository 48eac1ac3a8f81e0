"""The gated recurrent unit as it was first published."""

from __future__ import annotations

from torch import Tensor

from evenflow.cells.cell import Cell, Change, unchanged
from evenflow.cells.gru import GRUStep


class ResetFirstGRU(GRUStep):
    """`GRUStep` whose reset gate acts before the product: ``n = tanh(W_n x_t + b_n + U_n (r h_{t-1}))``.

    Weights: those of `GRUStep` without bias_hh_n.

    >>> layer = Recurrent(cells.ResetFirstGRU(), 2, 128)
    >>> layer(torch.randn(100, 8, 2))[0].shape
    torch.Size([100, 8, 128])

    References: Cho et al. 2014; Galvan, equations 2.6 to 2.10, whose update gate is our 1 - z.
    """

    parameters = ()  # type: ignore[assignment]
    equation = "h = (1 - z) n + z h, n = tanh(W x + b + U (r h))"
    start = Cell.start

    def settings(self) -> dict[str, object]:
        return {"form": "2014"}

    def step(  # type: ignore[override]
        self, a: Tensor, h: Tensor, U: Tensor, U_n: Tensor, *, read: Change = unchanged, normal: Change = unchanged
    ) -> Tensor:
        a_gates, a_n = a.split([2 * h.shape[-1], h.shape[-1]], -1)
        r, z = normal(a_gates + read(h) @ U.mT, 2).sigmoid().chunk(2, -1)
        n = normal(a_n + (r * read(h)) @ U_n.mT).tanh()
        return (1 - z) * n + z * h
