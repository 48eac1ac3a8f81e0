"""The activations of single units."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from evenflow.activations.activation import activation

LEAST_SATURATION = 0.01


@activation("a", slopes=(1, 1))
def identity(a: Tensor) -> Tensor:
    """``a``: a linear layer."""
    return a


@activation("max(a, 0)", slopes=(0, 1))
def relu(a: Tensor) -> Tensor:
    """``max(a, 0)`` (Nair and Hinton 2010)."""
    return torch.relu(a)


def _leaky_slopes(p: Tensor | None, *, slope: float) -> tuple[float, float]:
    if not 0 < slope < 1:
        raise ValueError(f"the slope of leaky must lie between 0 and 1, got {slope}")
    return slope, 1


@activation("max(a, λa)", slopes=_leaky_slopes)
def leaky(a: Tensor, *, slope: float = 0.01) -> Tensor:
    """``max(a, λa)``, λ the slope, fixed (Maas et al. 2013)."""
    return torch.nn.functional.leaky_relu(a, slope)


def _prelu_start(size: int, generator: torch.Generator | None, *, slope: float = 0.25) -> Tensor:
    return torch.full((1,), slope)


def _prelu_slopes(p: Tensor | None, *, slope: float) -> tuple[float, float]:
    if p is None:
        return 0, inf
    size = abs(float(p.detach()))
    return min(1, size), max(1, size)


@activation("max(a, 0) + p min(a, 0)", slopes=_prelu_slopes, start=_prelu_start)
def prelu(a: Tensor, p: Tensor) -> Tensor:
    """``max(a, 0) + p min(a, 0)``, the leaky unit with one trained slope p per layer (He et al. 2015)."""
    return torch.where(a > 0, a, p * a)


@activation("tanh(a)", slopes=(0, 1))
def tanh(a: Tensor) -> Tensor:
    """``tanh(a)`` (LeCun et al. 1998)."""
    return torch.tanh(a)


@activation("σ(a) = 1 / (1 + exp(-a))", slopes=(0, 0.25))
def sigmoid(a: Tensor) -> Tensor:
    """``1 / (1 + exp(-a))``, the logistic function; 1/2 at 0, and slopes of at most 1/4 (Rumelhart et al. 1986)."""
    return torch.sigmoid(a)


@activation("min(max(a, -1), 1)", slopes=(0, 1))
def hardtanh(a: Tensor) -> Tensor:
    """``min(max(a, -1), 1)``, tanh in three lines (Collobert 2004)."""
    return torch.where(a.abs() > 1, a.sign(), a)  # the backward pass keeps one comparison; a clamp would need two


@activation("a / (1 + |a|)", slopes=(0, 1))
def softsign(a: Tensor) -> Tensor:
    """``a / (1 + |a|)``, which saturates as a power where tanh does exponentially (Bergstra et al. 2009)."""
    return torch.nn.functional.softsign(a)


@activation("sin(a)", slopes=(0, 1))
def sin(a: Tensor) -> Tensor:
    """``sin(a)`` (Parascandolo et al. 2016)."""
    return torch.sin(a)


@activation("|a|", slopes=(1, 1), name="abs")
def absolute(a: Tensor) -> Tensor:
    """``|a|``, whose slopes have size one: the activation of the uRNN document (Lin and Wang)."""
    return a.abs()


def _modrelu_start(size: int, generator: torch.Generator | None) -> Tensor:
    return torch.empty(size).uniform_(-0.01, 0.01, generator=generator)


@activation("sign(a) max(|a| + p, 0)", slopes=(0, 1), start=_modrelu_start)
def modrelu(a: Tensor, p: Tensor) -> Tensor:
    """``sign(a) max(|a| + p, 0)``, a trained p per unit: shrinks the size and keeps the sign (Arjovsky et al. 2016).

    At a = 0 there is no sign and the value is 0. With p > 0 the function jumps there.
    """
    sign = a.sign() * (a.abs() + p > 0)  # 0 where the unit is off; the backward pass reads nothing else
    return sign.abs() * a + sign * p


def _saturated_start(size: int, generator: torch.Generator | None, *, start: float = 1.0) -> Tensor:
    return torch.full((size,), start - LEAST_SATURATION)


def _saturated_slopes(p: Tensor | None, *, start: float) -> tuple[float, float]:
    if not LEAST_SATURATION <= start < inf:
        raise ValueError(f"the start of saturated must be at least {LEAST_SATURATION}, got {start}")
    return 0, 1


@activation("tanh(s a) / s, s = |p| + 0.01", slopes=_saturated_slopes, start=_saturated_start)
def saturated(a: Tensor, p: Tensor) -> Tensor:
    """``tanh(s a) / s`` with ``s = |p| + 0.01``, a trained p per unit: from nearly linear to tanh at s = 1, and beyond.

    The adaptively saturated layer (asRNN) of Nguyen-Duy et al. 2023 has ``W⁻¹ tanh(W a)`` with ``W = U D``, U trained
    and orthogonal, D diagonal with entries ``|p| + ε``, each p drawn from an interval at the start. This is its case
    U = I, the one that is a function of single units, with ε = 0.01; s starts at 1, or ``"saturated(0.1)"`` at 0.1.
    """
    s = p.abs() + LEAST_SATURATION
    return torch.tanh(s * a) / s
