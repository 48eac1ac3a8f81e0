"""Lower and upper bounds on ‖∂h_t/∂h_k‖ from singular values and the slopes of the activation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evenflow.cells import Cell, ComplexElman, Elman, ScalarGated
from evenflow.checks import one_of, whole_number
from evenflow.probes.model_layer import find_layer
from evenflow.probes.unrolled import step_weights

NORMS = ("frobenius", "spectral")
EVEN = 1e-4  # a rate this close to one counts as one; float32 maps are orthogonal to 1e-6

# The uRNN document's Table 1, by the lower and the upper rate; "may" is its asterisk.
REGIMES = {
    ("below", "below"): "vanishes",
    ("below", "one"): "may vanish",
    ("below", "above"): "may vanish or explode",
    ("one", "one"): "constant",
    ("one", "above"): "may explode",
    ("above", "above"): "explodes",
}


@dataclass(frozen=True)
class Band:
    """``lower <= ‖∂h_t/∂h_k‖ <= upper`` for t - k = lag, whatever the input.

    Attributes:
        lag: t - k.
        lower_rate, upper_rate: the smallest and the largest factor by which one step multiplies the norm.
        lower, upper: the rates to the power of the lag, times ‖I‖ (√h for the Frobenius norm, 1 for the spectral one).

    >>> gradient_band(RNN(2, 16, map="svd", margin=0.1), lag=1).upper_rate <= 1.1 + 1e-6
    True
    """

    lag: int
    lower_rate: float
    upper_rate: float
    lower: float
    upper: float

    @property
    def regime(self) -> str:
        """The behaviour of the gradient as the lag grows, in the words of Table 1; see `regime`."""
        return regime(self.lower_rate, self.upper_rate)


def gradient_band(model: nn.Module, lag: int, *, norm: str = "frobenius", member: int | None = None) -> Band:
    """``(β σ_min)^lag ‖I‖ <= ‖∂h_t/∂h_k‖ <= (γ σ_max)^lag ‖I‖`` of a plain or scalar-gated layer.

    σ are the singular values of the recurrent matrix, [β, γ] the absolute slopes of the activation. A scalar-gated
    step, α f(...) + β' h, has at most the rate ``α γ σ_max + β'``, and at least the difference of its two terms.

    Args:
        model: a layer of evenflow, torch's RNN, or a module that contains one. There is no such band for cells with
            vector gates (GRU, LSTM, SCRN).
        lag: t - k.
        norm: ``"frobenius"`` or ``"spectral"``.
        member: which layer and direction, see `probes.jacobian_norms`. The band is for the states of one layer.

    Note on the theorem: the document has the eigenvalues of a diagonalisable matrix, and its proof uses a unitary
    basis, which only normal matrices have. With singular values it holds for any matrix, and is the same for normal
    ones. `test_eigenvalues_would_not_do` has a matrix of radius 1/2 whose powers grow at first.

    >>> band = gradient_band(RNN(2, 100, map="exponential", activation="abs"), lag=30)
    >>> round(band.lower, 3), round(band.upper, 3)
    (10.0, 10.0)

    Reference: Lin and Wang, Theorem 1.
    """
    cell, weights = step_weights(find_layer(model), member)
    if type(cell) not in (Elman, ScalarGated, ComplexElman):
        raise ValueError(f"a gradient band needs a plain or scalar-gated layer, got a {cell.name} cell")
    values = torch.linalg.svdvals(weights["weight_hh"])
    alpha, beta = (float(g) for g in cell.scalars(weights)) if isinstance(cell, ScalarGated) else (1.0, 0.0)
    return band(
        (float(values[-1]), float(values[0])),
        slopes(cell, weights),
        lag,
        weights["weight_hh"].shape[-1],
        gates=(alpha, beta),
        norm=norm,
    )


def band(
    singular_values: tuple[float, float],
    slope_bounds: tuple[float, float],
    lag: int,
    units: int,
    *,
    gates: tuple[float, float] = (1.0, 0.0),
    norm: str = "frobenius",
) -> Band:
    """`gradient_band` from numbers: the smallest and largest singular value, the slopes [β, γ], and h.

    Args:
        singular_values: the smallest and the largest.
        slope_bounds: β and γ.
        lag: t - k.
        units: h.
        gates: α and β' of a scalar-gated step; (1, 0) for a plain one.
        norm: ``"frobenius"`` or ``"spectral"``.

    >>> band((1, 1), (0.5, 1), lag=30, units=200).lower  # Table 6 of the document, times the √200 that it omits
    1.317089...e-08
    """
    whole_number("lag", lag, 0)
    whole_number("units", units, 1)
    one_of("norm", norm, NORMS)
    _ordered("singular_values", singular_values)
    _ordered("slope_bounds", slope_bounds)
    _ordered("gates", (0.0, min(gates)))
    alpha, carried = gates
    least, most = alpha * slope_bounds[0] * singular_values[0], alpha * slope_bounds[1] * singular_values[1]
    lower_rate, upper_rate = max(least - carried, carried - most, 0.0), most + carried
    size = math.sqrt(units) if norm == "frobenius" else 1.0
    return Band(lag, lower_rate, upper_rate, power(lower_rate, lag) * size, power(upper_rate, lag) * size)


def regime(lower_rate: float, upper_rate: float) -> str:
    """The behaviour of ‖∂h_t/∂h_k‖ as t grows, in the words of the uRNN document's Table 1.

    >>> regime(0.5, 1)
    'may vanish'
    """
    _ordered("rates", (lower_rate, upper_rate))
    return REGIMES[_side(lower_rate), _side(upper_rate)]


def slopes(cell: Cell, weights: dict[str, Tensor]) -> tuple[float, float]:
    """β and γ with β <= |f'| <= γ for the activation with its trained parameters (the document's Table 2)."""
    assert isinstance(cell, Elman | ComplexElman)
    return cell.activation.slopes(weights.get("activation"))


def power(rate: float, exponent: int) -> float:
    """``rate ** exponent``, which is inf where it is too large for a number."""
    try:
        return float(rate) ** exponent
    except OverflowError:
        return math.inf


def _side(rate: float) -> str:
    return "one" if abs(rate - 1) <= EVEN else "below" if rate < 1 else "above"


def _ordered(name: str, pair: tuple[float, float]) -> None:
    if not 0 <= pair[0] <= pair[1]:
        raise ValueError(f"{name} must be two numbers of at least 0, the smaller first, got {pair}")
