"""The independently recurrent cell: no unit reads another one."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow import activations
from evenflow.cells.cell import Cell, Weights
from evenflow.checks import number


class IndRNNStep(Cell):
    """``h_t = f(W_ih x_t + b + u h_{t-1})`` with one recurrent weight for each unit; layers above mix the units.

    Args:
        activation: f. Default: ``"relu"``.
        bound: the largest |u|; larger ones count as the bound. Default: 1, so that no gradient explodes.

    Weights:
        weight_ih ``(H, I)``, bias ``(H)``, and unit_weight ``(H)``, the u, from U(0, bound) at the start; and those of
        the activation.

    Note on the bound: the paper clips u after each update. Here u is clipped where it is read, and its gradient is that
    at the bound, so that a unit beyond it can come back; `test_a_unit_beyond_the_bound_comes_back` shows this.

    >>> layer = IndRNN(2, 128)  # the same as Recurrent(cells.IndRNNStep(), 2, 128)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Li, Li, Cook, Zhu and Gao 2018.
    """

    recurrent = ()
    parameters = ("unit_weight", "activation")
    equation = "h = f(W x + b + u h), u one number a unit"

    def __init__(self, activation: activations.ActivationChoice = "relu", bound: float = 1.0) -> None:
        self.activation = activations.make(activation)
        number("bound", bound, above=0)
        self.bound = bound

    def settings(self) -> dict[str, object]:
        return {"activation": self.activation.key} | ({} if self.bound == 1 else {"bound": self.bound})

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        drawn = {"unit_weight": self.bound * torch.rand(hidden_size, generator=generator)}
        return drawn | self.activation.weights(hidden_size, generator)

    def prepare(self, weights: Weights) -> Weights:
        u = weights["unit_weight"]
        return {**weights, "unit_weight": u + (u.clamp(-self.bound, self.bound) - u).detach()}

    def step(self, a: Tensor, h: Tensor, u: Tensor, p: Tensor | None = None) -> Tensor:
        return self.activation(a + u * h, p)
