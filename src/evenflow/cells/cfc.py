"""The closed-form continuous-time cell."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.cells.cell import Cell, Change, Matrix, unchanged, without_gap


class CfCStep(Cell):
    """``h_t = (1 - s) tanh(g) + s tanh(k)`` with ``s = σ(u dt + v)``, and (g, k, u, v) = V z + c of a hidden layer z.

    ``z = 1.7159 tanh(2/3 (W_ih x_t + b + W_hh h_{t-1}))``, and dt is the time since the step before, see
    `Recurrent.forward`; 1 if it is not given.

    Weights:
        weight_ih ``(H, I)``, weight_hh ``(H, H)`` and bias ``(H)`` of z, whose width is H; weight_hz ``(4H, H)``, V;
        bias_z ``(4H)``, c, zero at the start.

    Note: these are the default mode and hidden activation of the authors' library, with one hidden layer.

    >>> layer = CfC(2, 128)  # the same as Recurrent(cells.CfCStep(), 2, 128)
    >>> dt = torch.rand(100, 8)  # the time since the step before
    >>> output, h_n = layer(torch.randn(100, 8, 2), dt=dt)
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Hasani et al. 2022.
    """

    timed = True
    recurrent = ("weight_hh", "weight_hz")
    parameters = ("bias_z",)
    equation = "h = (1 - s) tanh(g) + s tanh(k), s = σ(u dt + v), (g, k, u, v) = V tanh(W x + b + U h) + c"

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return Matrix("weight_hh", hidden_size), Matrix("weight_hz", hidden_size, 4, mapped=False)

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        weights = super().start(input_size, hidden_size, bias, generator)
        return weights | ({"bias_z": torch.zeros(4 * hidden_size)} if bias else {})

    def step(
        self, a: Tensor, h: Tensor, U: Tensor, V: Tensor, c: Tensor | None = None, *, read: Change = unchanged
    ) -> Tensor:
        a, dt = without_gap(a, h.shape[-1])
        z = 1.7159 * (2 / 3 * (a + read(h) @ U.mT)).tanh()
        g, k, u, v = torch.nn.functional.linear(z, V, c).chunk(4, -1)
        s = (u * dt + v).sigmoid()
        return (1 - s) * g.tanh() + s * k.tanh()
