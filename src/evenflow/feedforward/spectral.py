"""The deep networks of the Spectral-RNN document: MLP and ResNet with singular values held within a margin."""

from __future__ import annotations

import math

import torch
from torch import nn

from evenflow.activations import ActivationChoice
from evenflow.checks import one_of
from evenflow.feedforward.networks import MLP, FeedForward, Linear, ResNet
from evenflow.feedforward.spectral_linear import SpectralLinear

STARTS = ("identity", "random")
# The initial singular values, by place. The second layer of a block starts at zero, so that the block adds nothing.
CENTERS = {"input": 1.0, "hidden": 1.0, "first": 1.0, "second": 0.0}


class _Spectral(FeedForward):
    """A network of `SpectralLinear` layers."""

    start = "random"

    def _reset_linear(self, place: str, layer: nn.Module, generator: torch.Generator | None) -> None:
        if not isinstance(layer, SpectralLinear):
            return super()._reset_linear(place, layer, generator)
        layer.reset_parameters(generator)
        if place == "hidden" and self.start == "identity":
            layer.share_reflectors()
        return None


class SpectralMLP(_Spectral, MLP):
    """`MLP` with every singular value of W_in and W_1 to W_L within 1 ± r.

    From h_L to h_0 the length of a gradient is multiplied by at least ``(β(1 - r))^L`` and at most ``(γ(1 + r))^L``,
    if the slopes of f lie in [β, γ]: see `gradient_bounds`.

    Numbers: each hidden layer has ``2(mn - m(m-1)/2) + 2n`` for a width of n and m reflectors on either side, the input
    layer ``k(I + n) - k(k-1) + k + n`` with k = min(I, n), the readout ``O(n + 1)``.

    Args:
        input_size, output_size, width, depth, dropout, generator, device, dtype: as in `MLP`.
        activation: f. Default: ``"oplu"``.
        reflectors: m, on each side of each hidden layer. Default: n. The input layer always has k reflectors: with
            fewer it would read few of its inputs.
        margin: r, or None for no bound. Default: 0.01.
        start: ``"identity"``, or ``"random"`` as in the document; see the note.

    Starting value: as in `SpectralLinear`. With ``"identity"`` both sides of a hidden layer have the same reflectors,
    so that ``W = U Uᵀ = I``. The readout is free and Glorot uniform.

    Note on the start: with independent reflectors each layer is a random rotation. Gradients pass a hundred of them,
    but the gradient of one layer is soon wrong when all other layers move. On scikit-learn's digits (100 layers of 32
    units, 4 reflectors, Adam), the test accuracy was 0.82 after 60 updates from the identity and 0.39 after 200 updates
    from random rotations. `MLP` did not learn from Glorot or orthogonal starts; from identities it reached 0.88, but
    its gradients have no bound. `test_a_hundred_layers_train` shows the first and the third.

    Note on f: the document has leaky ReLU, which removes up to a third of the length of the gradient in each layer:
    through a hundred random layers of 128 units 4e-4 of the length was left, and 2e-16 in `MLP`. The default
    ``"oplu"`` sorts pairs and preserves lengths (for even widths); pass ``"leaky"`` for that of the document.
    `test_gradients_stay_within_their_bounds` shows both.

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
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        one_of("start", start, STARTS)
        linear = _spectral_linear(reflectors, margin, start)
        super().__init__(
            input_size,
            output_size,
            width=width,
            depth=depth,
            activation=activation,
            linear=linear,
            dropout=dropout,
            generator=generator,
            device=device,
            dtype=dtype,
        )
        self.reflectors, self.margin, self.start = reflectors, margin, start

    def gradient_bounds(self) -> tuple[float, float]:
        """Return bounds of ``|∂L/∂h_0| / |∂L/∂h_L|`` for all weights that training can reach.

        For an activation with trained slopes (prelu) the bounds are those of the present slopes.
        """
        low, high = _size("hidden", self.margin)
        slopes = [self.activation.slopes(self._numbers(layer)) for layer in range(1, self.depth + 1)]
        return math.prod(beta * low for beta, _ in slopes), math.prod(gamma * high for _, gamma in slopes)


class SpectralResNet(_Spectral, ResNet):
    """`ResNet` with the singular values of W_in and each W_k1 within 1 ± r, and those of each W_k2 within ±r.

    A block's Jacobian is ``I + W_k2 f' W_k1``, so that gradients change by at most ``(1 ± γ r(1 + r))^(L/2)``.

    Numbers: those of `SpectralMLP`.

    Args:
        input_size, output_size, width, depth, dropout, generator, device, dtype: as in `ResNet`.
        activation: f. Default: ``"relu"``.
        reflectors: m, as in `SpectralMLP`.
        margin: r, or None for no bound. Default: 0.1; with 0.01 a block can add hardly anything.

    Starting value: as in `SpectralLinear`; every block adds nothing, since W_k2 starts at zero.

    Note on the center: the release of the document has s* = 0 and singular values that start there. If both matrices of
    a block are zero, neither ever gets a gradient. Here s* is 1 for the first: the second moves at once, and then both.
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
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        linear = _spectral_linear(reflectors, margin)
        super().__init__(
            input_size,
            output_size,
            width=width,
            depth=depth,
            activation=activation,
            linear=linear,
            dropout=dropout,
            generator=generator,
            device=device,
            dtype=dtype,
        )
        self.reflectors, self.margin = reflectors, margin

    def gradient_bounds(self) -> tuple[float, float]:
        """Return bounds of ``|∂L/∂h_0| / |∂L/∂h_L/2|``; see `SpectralMLP.gradient_bounds`."""
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
    """Return bounds of the absolute singular values of a layer."""
    if margin is None or isinstance(margin, str):
        return 0.0, float("inf")
    return max(0.0, CENTERS[place] - margin), CENTERS[place] + margin
