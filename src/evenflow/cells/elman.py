"""The plain recurrent cell."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow import activations
from evenflow.cells.cell import Cell, Change, Weights, unchanged
from evenflow.checks import number

SCALED = ("weight_ih", "bias", "weight_hh")  # the weights in which the pre-activation is linear


class Elman(Cell):
    """``h_t = f(gain (W_ih x_t + b + W_hh h_{t-1}))``.

    Args:
        activation: f, a name of `activations.ACTIVATIONS`, a function of a tensor or an `Activation`; an activation
            with trained parameters adds the weight ``activation``.
        gain: a fixed factor above 0 on the pre-activation; 1.05 compensates the contraction of tanh. It scales the
            weights once per call.

    >>> layer = Recurrent(cells.Elman("abs"), 2, 128, map="cayley")  # RNN(2, 128, map="cayley", activation="abs")
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    References: Elman 1990; Vorontsov et al. 2017 (the gain).
    """

    equation = "h = f(W x + b + U h)"
    parameters: tuple[str, ...] = ("activation",)

    def __init__(self, activation: activations.ActivationChoice = "tanh", gain: float = 1.0) -> None:
        self.activation = activations.make(activation)
        number("gain", gain)
        if not 0 < gain < float("inf"):
            raise ValueError(f"gain must be a number above 0, got {gain!r}")
        self.gain = gain

    def settings(self) -> dict[str, object]:
        return {"activation": self.activation.key} | ({} if self.gain == 1 else {"gain": self.gain})

    def prepare(self, weights: Weights) -> Weights:
        if self.gain == 1:
            return weights
        return {name: w * self.gain if name in SCALED else w for name, w in weights.items()}

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        return self.activation.weights(hidden_size, generator)

    def step(
        self,
        a: Tensor,
        h: Tensor,
        U: Tensor,
        p: Tensor | None = None,
        *,
        read: Change = unchanged,
        normal: Change = unchanged,
    ) -> Tensor:
        return self.activation(normal(a + read(h) @ U.mT), p)
