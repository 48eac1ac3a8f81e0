"""The cell of LinOSS: linear oscillators that are driven by the input."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.cells.cell import Cell
from evenflow.checks import one_of

SCHEMES = ("im", "imex")


class LinOSSStep(Cell):
    """``y'' = -k y + W_ih x``, in steps of d: ``z_t = z_{t-1} + d (W_ih x_t - k y)`` and ``y_t = y_{t-1} + d z_t``.

    ``k = max(stiffness, 0)`` and ``d = σ(time_step)``, one for each unit. The output is y; the states are (y, z).

    Args:
        scheme: the y in the equation of z: ``"im"`` (default), y_t, the implicit scheme, which forgets; or ``"imex"``,
            y_{t-1}, the symplectic one, which keeps a volume of (y, z) constant.

    Weights:
        weight_ih ``(H, I)``; bias ``(H)``; stiffness and time_step ``(H)``, both from U(0, 1) at the start.

    Note on the output: the paper's layer returns C y + D x, and this one y; the linear map that reads it is C.

    >>> layer = LinOSS(2, 128, scheme="imex")  # the same as Recurrent(cells.LinOSSStep("imex"), 2, 128)
    >>> output, (y_n, z_n) = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Rusch and Rus 2025.
    """

    states = ("y", "z")
    recurrent = ()
    parameters = ("stiffness", "time_step")
    equation = "z = z + d (W x - k y), y = y + d z"

    def __init__(self, scheme: str = "im") -> None:
        one_of("scheme", scheme, SCHEMES)
        self.scheme = scheme

    def settings(self) -> dict[str, object]:
        return {"scheme": self.scheme}

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {name: torch.rand(hidden_size, generator=generator) for name in self.parameters}

    def step(self, a: Tensor, y: Tensor, z: Tensor, stiffness: Tensor, time_step: Tensor) -> tuple[Tensor, Tensor]:
        k, d = stiffness.relu(), time_step.sigmoid()
        z = z + d * (a - k * y)
        if self.scheme == "im":  # solved for z_t
            z = z / (1 + d * d * k)
        return y + d * z, z
