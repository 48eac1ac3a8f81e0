"""The plain recurrent cell."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow import activations
from evenflow.cells.cell import Cell, State, Weights


class Elman(Cell):
    """``h_t = f(W_ih x_t + b + W_hh h_{t-1})``.

    Args:
        activation: f, a name of `activations.ACTIVATIONS` or an `Activation`; one with a trained number adds the weight
            ``activation``.

    Reference: Elman 1990.
    """

    equation = "h = f(W x + b + U h)"

    def __init__(self, activation: str | activations.Activation = "tanh") -> None:
        self.activation = activations.make(activation)

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        trained = self.activation.start(hidden_size, generator)
        return {} if trained is None else {"activation": trained}

    def step(self, a: Tensor, state: State, weights: Weights) -> State:
        (h,) = state
        return (self.activation(a + h @ weights["weight_hh"].mT, weights.get("activation")),)
