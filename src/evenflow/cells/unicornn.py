"""The cell of UnICORNN: undamped oscillators that do not read each other."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.cells.cell import Cell
from evenflow.checks import number


class UnICORNNStep(Cell):
    """``z_t = z_{t-1} - d (tanh(w y_{t-1} + W_ih x_t + b) + α y_{t-1})`` and ``y_t = y_{t-1} + d z_t``, d = dt σ(c).

    A symplectic step of oscillators with one weight w and one time scale c for each unit. Without damping gradients
    neither vanish nor explode over many steps; layers above mix the units. The output is y; the states are (y, z).

    Args:
        dt: the longest step. Default: 0.1.
        alpha: α, the squared frequency without input, at least 0. Default: 1.

    Weights:
        weight_ih ``(H, I)``, bias ``(H)``, unit_weight ``(H)``, the w, from U(0, 1) at the start; time_scale ``(H)``,
        the c, from U(-0.1, 0.1).

    >>> layer = UnICORNN(2, 128, dt=0.05)  # the same as Recurrent(cells.UnICORNNStep(dt=0.05), 2, 128)
    >>> output, states = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Rusch and Mishra 2021 (UnICORNN).
    """

    states = ("y", "z")
    recurrent = ()
    parameters = ("unit_weight", "time_scale")
    equation = "z = z - d (tanh(w y + W x + b) + α y), y = y + d z, d = dt σ(c)"

    def __init__(self, dt: float = 0.1, alpha: float = 1.0) -> None:
        number("dt", dt, above=0)
        number("alpha", alpha, least=0)
        self.dt, self.alpha = dt, alpha

    def settings(self) -> dict[str, object]:
        return {"dt": self.dt, "alpha": self.alpha}

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        drawn = torch.rand(hidden_size, generator=generator)
        return {"unit_weight": drawn, "time_scale": 0.2 * torch.rand(hidden_size, generator=generator) - 0.1}

    def step(self, a: Tensor, y: Tensor, z: Tensor, w: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        d = self.dt * c.sigmoid()
        z = z - d * ((a + w * y).tanh() + self.alpha * y)
        return y + d * z, z
