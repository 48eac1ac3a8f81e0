"""The long expressive memory cell."""

from __future__ import annotations

from torch import Tensor

from evenflow.cells.cell import Cell, Change, Matrix, unchanged
from evenflow.checks import number


class LEMStep(Cell):
    """Two states with a learned step length for each unit: ``z_t = (1 - d_1) z_{t-1} + d_1 tanh(g)`` and
    ``y_t = (1 - d_2) y_{t-1} + d_2 tanh(W_y x_t + b_y + V z_t)``.

    The step lengths are ``(d_1, d_2) = dt σ(W x_t + b + U y_{t-1})``, the input of z is ``g = W_z x_t + b_z +
    U_z y_{t-1}``. The output is y; the states are (y, z).

    Args:
        dt: the longest step. Default: 1.

    Weights:
        weight_ih ``(4H, I)`` and bias ``(4H)``, in the order d_1, d_2, z, y; weight_hh ``(3H, H)``: those of y_{t-1} in
        d_1, d_2 and z; weight_hz ``(H, H)``, the V.

    Note on parameters: the authors' code has a second bias, of the same equation, for each product with y or z.

    >>> layer = LEM(2, 128, dt=0.5)  # the same as Recurrent(cells.LEMStep(dt=0.5), 2, 128)
    >>> output, (y_n, z_n) = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Rusch, Mishra, Erichson and Mahoney 2022.
    """

    blocks = 4
    states = ("y", "z")
    recurrent = ("weight_hh", "weight_hz")
    equation = "z = (1 - d) z + d tanh(W x + U y), y = (1 - e) y + e tanh(W x + V z); d, e = dt σ(W x + U y)"

    def __init__(self, dt: float = 1.0) -> None:
        number("dt", dt, above=0, most=1)
        self.dt = dt

    def settings(self) -> dict[str, object]:
        return {"dt": self.dt}

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return Matrix("weight_hh", hidden_size, 3, mapped=False), Matrix("weight_hz", hidden_size)

    def step(
        self, a: Tensor, y: Tensor, z: Tensor, U: Tensor, V: Tensor, *, read: Change = unchanged
    ) -> tuple[Tensor, Tensor]:
        a_1, a_2, a_z, a_y = a.chunk(4, -1)
        u_1, u_2, u_z = (read(y) @ U.mT).chunk(3, -1)
        d, e = self.dt * (a_1 + u_1).sigmoid(), self.dt * (a_2 + u_2).sigmoid()
        z = (1 - d) * z + d * (a_z + u_z).tanh()
        return (1 - e) * y + e * (a_y + z @ V.mT).tanh(), z
