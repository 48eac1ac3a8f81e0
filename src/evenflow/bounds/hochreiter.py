"""Two upper bounds on ∂h_t/∂h_k: from the largest weight, and from the largest singular value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from evenflow.bounds.band import power, slopes
from evenflow.cells import Elman
from evenflow.checks import whole_number
from evenflow.probes.model_layer import find_layer
from evenflow.probes.unrolled import step_weights


@dataclass(frozen=True)
class UpperBound:
    """``norm <= value`` after `lag` steps, each of which multiplies the norm by at most `rate`.

    >>> singular_value_from(largest=0.9, slope=1.0, lag=10).rate
    0.9
    """

    lag: int
    rate: float
    value: float

    @property
    def vanishes(self) -> bool:
        """True if the bound goes to zero with the lag: sufficient for a vanishing gradient, not necessary."""
        return self.rate < 1


def hochreiter_bound(model: nn.Module, lag: int, *, member: int | None = None) -> UpperBound:
    """``max |∂h_t/∂h_k| <= τ^lag / h``, ``τ = h γ max |W_hh|``, of a plain layer: Hochreiter's weak bound.

    Args:
        model: a layer of evenflow, torch's RNN, or a module that holds one.
        lag: t - k.
        member: which layer and direction, see `probes.jacobian_norms`.

    Note on the exponent: the document has τ^(t-k-1), but its product has t - k factors. The first of them has no factor
    h, which gives τ^(t-k) / h; equal weights of one sign and slopes of γ reach this bound, as the document says of its
    own. `test_the_printed_exponent_is_too_small` has a layer above τ^(t-k-1).

    Note on a and h: the document differentiates pre-activations, which gives the same factors in another order.

    >>> bound = hochreiter_bound(layer, lag=10)
    >>> bool(probes.jacobian(layer, x, t=15, k=5).spectral.max() <= 16 * bound.value)  # entries of a 16 x 16 matrix
    True

    Reference: Galvan, 1.64 to 1.68, after Hochreiter 1991.
    """
    cell, weights = _plain(model, member)
    W, slope = weights["weight_hh"], slopes(cell, weights)[1]
    if cell.activation.paired and cell.activation.name != "oplu":  # which permutes: one entry in each row
        slope *= math.sqrt(2)  # two entries in each row, with a sum of at most √2 times the norm
    return hochreiter_from(float(W.abs().max()), slope, W.shape[-1], lag)


def hochreiter_from(largest_weight: float, slope: float, units: int, lag: int) -> UpperBound:
    """`hochreiter_bound` from numbers: max |W_hh|, γ and h.

    >>> hochreiter_from(0.9 / 64, 1, 64, lag=100).vanishes
    True
    """
    whole_number("lag", lag, 0)
    whole_number("units", units, 1)
    tau = units * _least("slope", slope) * _least("largest_weight", largest_weight)
    # Lag 0 is the identity, whose largest entry is 1.
    return UpperBound(lag, tau, power(tau, lag) / (units if lag else 1))


def singular_value_bound(model: nn.Module, lag: int, *, member: int | None = None) -> UpperBound:
    """``‖∂h_t/∂h_k‖₂ <= (γ σ_max)^lag`` of a plain layer.

    Args:
        model, member: see `hochreiter_bound`.

    Note on the exponent: again t - k, where the document prints t - k - 1. Its λ_max = μ_max holds only for normal
    matrices, not for all diagonalisable ones: the largest singular value may be far above the spectral radius.

    >>> bound = singular_value_bound(layer, lag=10).value
    >>> bool((probes.jacobian(layer, x, t=15, k=5).spectral <= bound + 1e-6).all())
    True

    Reference: Galvan, 1.69 to 1.72.
    """
    cell, weights = _plain(model, member)
    largest = float(torch.linalg.matrix_norm(weights["weight_hh"], 2))
    return singular_value_from(largest, slopes(cell, weights)[1], lag)


def singular_value_from(largest: float, slope: float, lag: int) -> UpperBound:
    """`singular_value_bound` from numbers: σ_max and γ.

    >>> singular_value_from(largest=0.9, slope=1.0, lag=10).value
    0.3486...
    """
    whole_number("lag", lag, 0)
    rate = _least("slope", slope) * _least("largest", largest)
    return UpperBound(lag, rate, power(rate, lag))


def _plain(model: nn.Module, member: int | None) -> tuple[Elman, dict[str, torch.Tensor]]:
    cell, weights = step_weights(find_layer(model), member)
    if type(cell) is not Elman:
        raise ValueError(f"this bound needs a plain layer, got a {cell.name} cell")
    return cell, weights


def _least(name: str, value: float) -> float:
    if not value >= 0:
        raise ValueError(f"{name} must be a number of at least 0, got {value}")
    return value
