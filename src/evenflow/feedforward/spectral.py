"""The deep networks of the Spectral-RNN document: MLP and ResNet with singular values held within a margin."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from evenflow.activations import ActivationChoice
from evenflow.checks import one_of
from evenflow.feedforward.networks import MLP, Linear, ResNet
from evenflow.feedforward.spectral_linear import SpectralLinear

STARTS = ("identity", "random")
# Where the singular values start, by place. The second layer of a block is what the block adds: nothing, at first.
CENTERS = {"input": 1.0, "hidden": 1.0, "first": 1.0, "second": 0.0}


class SpectralMLP(MLP):
    """`MLP` with every singular value of W_in and W_1 to W_L within 1 ± r.

    Gradients shrink or grow by at most ``(β(1 - r))^L`` to ``(γ(1 + r))^L`` on their way from h_L to h_0, where the
    slopes of f lie in [β, γ]: see `gradient_bounds`.

    Numbers: each hidden layer has ``2(mn - m(m-1)/2) + 2n`` for a width of n and m reflectors on either side, the input
    layer ``k(I + n) - k(k-1) + k + n`` with k = min(I, n), the readout ``O(n + 1)``.

    Args:
        reflectors: m, on either side of each hidden layer, by default all n. The input layer has all of its own: with
            few it would read few of its inputs.
        margin: r; None for no bound.
        start: ``"identity"``, or ``"random"`` for the document's start; see the note.
        others: see `MLP`.

    Starting value: as `SpectralLinear`, and with ``"identity"`` the reflectors of a hidden layer are drawn once for
    both sides, so that ``W = U Uᵀ = I``; the readout is free and Glorot uniform.

    Note on the start: independent reflectors make each layer a random rotation. Gradients arrive through a hundred of
    them too, but what they say of one layer is soon wrong when all the others move. On scikit-learn's digits (100
    layers of 32, 4 reflectors, Adam) a start at the identity reached 0.82 of the test digits in 60 updates, random ones
    0.39 in 200, and `MLP` stayed at a guess from Glorot and orthogonal starts alike; an `MLP` of identities learns as
    well, 0.88, but nothing holds its gradients there. `test_a_hundred_layers_train` shows the first and the third.

    Note on f: the document has leaky ReLU, which takes up to a third of the gradient's length at each layer: of a
    hundred random layers 4e-4 arrived at width 128, and 2e-16 in `MLP`. The default here sorts pairs and keeps lengths,
    and all of it arrives (width even); pass ``"leaky"`` for the document's. `test_gradients_stay_within_their_bounds`
    shows both.

    >>> model = SpectralMLP(784, 10, depth=100, reflectors=32)
    >>> model.gradient_bounds()
    (0.366..., 2.704...)

    Reference: Zhang, Lei and Dhillon 2018, section 5.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        width: int = 128,
        depth: int = 30,
        activation: ActivationChoice = "oplu",
        reflectors: int | None = None,
        margin: float | str | None = 0.01,
        start: str = "identity",
        **options: Any,
    ) -> None:
        one_of("start", start, STARTS)
        linear = _spectral_linear(reflectors, margin, start)
        super().__init__(
            input_size, output_size, width=width, depth=depth, activation=activation, linear=linear, **options
        )
        self.reflectors, self.margin, self.start = reflectors, margin, start

    def gradient_bounds(self) -> tuple[float, float]:
        """The least and the most that ``|∂L/∂h_0| / |∂L/∂h_L|`` can be, for any weights that training can reach.

        Where training reaches the slopes too (prelu), with those that there are.
        """
        low, high = _size("hidden", self.margin)
        slopes = [self.activation.slopes(self._numbers(layer)) for layer in range(1, self.depth + 1)]
        return math.prod(beta * low for beta, _ in slopes), math.prod(gamma * high for _, gamma in slopes)


class SpectralResNet(ResNet):
    """`ResNet` with the singular values of W_in and each W_k1 within 1 ± r, and those of each W_k2 within ±r.

    A block's Jacobian is ``I + W_k2 f' W_k1``, so that gradients change by at most ``(1 ± γ r(1 + r))^(L/2)``.

    Numbers: those of `SpectralMLP`.

    Args:
        reflectors, margin: m and r as in `SpectralMLP`. A margin of 0.01 leaves each block hardly anything to add; the
            default is 0.1.
        others: see `ResNet`.

    Starting value: as `SpectralLinear`; every block adds nothing, since W_k2 starts at zero.

    Note on the center: the document's release has s* = 0 and singular values that start there. With both matrices of a
    block at zero neither gets a gradient, ever; with s* = 1 for the first, the second moves at once and then both do.
    `test_a_block_of_two_zeros_would_not_move` shows it.

    >>> model = SpectralResNet(784, 10, depth=100, reflectors=32)

    Reference: Zhang, Lei and Dhillon 2018, section 5.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        width: int = 128,
        depth: int = 30,
        activation: ActivationChoice = "relu",
        reflectors: int | None = None,
        margin: float | None = 0.1,
        **options: Any,
    ) -> None:
        linear = _spectral_linear(reflectors, margin)
        super().__init__(
            input_size, output_size, width=width, depth=depth, activation=activation, linear=linear, **options
        )
        self.reflectors, self.margin = reflectors, margin

    def gradient_bounds(self) -> tuple[float, float]:
        """The least and the most that ``|∂L/∂h_0| / |∂L/∂h_L/2|`` can be; see `SpectralMLP.gradient_bounds`."""
        change = _size("first", self.margin)[1] * _size("second", self.margin)[1]
        slopes = [self.activation.slopes(self._numbers(block))[1] for block in range(self.depth // 2)]
        changes = [change * slope if change else 0.0 for slope in slopes]  # a slope may be infinite
        return math.prod(max(0.0, 1 - each) for each in changes), math.prod(1 + each for each in changes)


def _spectral_linear(reflectors: int | None, margin: float | str | None, start: str = "random") -> Linear:
    def linear(place: str, columns: int, rows: int, generator: torch.Generator | None) -> nn.Linear:
        m = None if place == "input" else reflectors
        layer = SpectralLinear(columns, rows, reflectors=m, center=CENTERS[place], margin=margin, generator=generator)
        if place == "hidden" and start == "identity":
            layer.share_reflectors()
        return layer

    return linear


def _size(place: str, margin: float | str | None) -> tuple[float, float]:
    """Between what a layer's singular values can be, without their signs."""
    if margin is None or isinstance(margin, str):
        return 0.0, float("inf")
    return max(0.0, CENTERS[place] - margin), CENTERS[place] + margin
