"""The coupled oscillatory recurrent cell."""

from __future__ import annotations

from torch import Tensor

from evenflow.cells.cell import Cell, Change, Matrix, unchanged
from evenflow.checks import number


class CoRNNStep(Cell):
    """``y'' = tanh(W y + V y' + W_ih x + b) - γ y - ε y'``: a network of damped, driven oscillators.

    One step of length dt: ``z_t = z_{t-1} + dt (tanh(W y_{t-1} + V z_{t-1} + W_ih x_t + b) - γ y_{t-1} - ε z_{t-1})``
    and ``y_t = y_{t-1} + dt z_t``. The output is y; the states are (y, z).

    Args:
        dt: the length of a step. Default: 0.05.
        gamma: γ, the squared frequency of the oscillators. Default: 1.
        epsilon: ε, their damping. Default: 0.5.

    Weights:
        weight_ih ``(H, I)``, bias ``(H)``, weight_hh ``(H, H)``, the W; weight_hz ``(H, H)``, the V.

    Note on parameters: as many as in the authors' code, where one linear layer reads x, z and y.

    >>> layer = CoRNN(2, 128, dt=0.1)  # the same as Recurrent(cells.CoRNNStep(dt=0.1), 2, 128)
    >>> output, (y_n, z_n) = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Rusch and Mishra 2021.
    """

    states = ("y", "z")
    recurrent = ("weight_hh", "weight_hz")
    equation = "z = z + dt (tanh(W x + b + U y + V z) - γ y - ε z), y = y + dt z"

    def __init__(self, dt: float = 0.05, gamma: float = 1.0, epsilon: float = 0.5) -> None:
        number("dt", dt, above=0)
        number("gamma", gamma, least=0)
        number("epsilon", epsilon, least=0)
        self.dt, self.gamma, self.epsilon = dt, gamma, epsilon

    def settings(self) -> dict[str, object]:
        return {"dt": self.dt, "gamma": self.gamma, "epsilon": self.epsilon}

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return Matrix("weight_hh", hidden_size), Matrix("weight_hz", hidden_size)

    def step(
        self, a: Tensor, y: Tensor, z: Tensor, W: Tensor, V: Tensor, *, read: Change = unchanged
    ) -> tuple[Tensor, Tensor]:
        z = z + self.dt * ((a + read(y) @ W.mT + z @ V.mT).tanh() - self.gamma * y - self.epsilon * z)
        return y + self.dt * z, z
