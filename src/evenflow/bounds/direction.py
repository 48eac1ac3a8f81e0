"""Galvan's condition 3.33, under which a direction other than the gradient still descends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evenflow.checks import number
from evenflow.probes.temporal_components import alignment


@dataclass(frozen=True)
class DirectionCondition:
    """``1 + α² - 2 α cos θ <= μ²``, the squared relative distance of a direction from the gradient.

    Attributes:
        cosine: cos θ, of the angle between the direction and the gradient.
        ratio: α, the norm of the direction over the norm of the gradient.
        mu: μ.

    >>> direction_condition(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]), mu=0.5)
    DirectionCondition(cosine=1.0, ratio=1.0, mu=0.5)
    """

    cosine: float
    ratio: float
    mu: float

    @property
    def distance(self) -> float:
        """``√(1 + α² - 2 α cos θ)``: the smallest μ for which the condition holds."""
        return math.sqrt(max(0.0, 1 + self.ratio**2 - 2 * self.ratio * self.cosine))

    @property
    def holds(self) -> bool:
        return self.distance <= self.mu

    @property
    def widest_angle(self) -> float:
        """The largest θ, in degrees, for which the condition holds at this α; nan if there is none."""
        if self.ratio == 0:
            return 180.0 if self.mu >= 1 else math.nan
        cosine = (1 + self.ratio**2 - self.mu**2) / (2 * self.ratio)
        return math.degrees(math.acos(max(-1.0, cosine))) if cosine <= 1 else math.nan


def direction_condition(
    direction: Sequence[Tensor] | Tensor, gradient: Sequence[Tensor] | Tensor, mu: float
) -> DirectionCondition:
    """The condition for a direction and a gradient, each a tensor or a list of tensors taken as one vector.

    A complex number counts as its real and imaginary part.

    Args:
        direction: the update is ``x - γ direction``.
        gradient: the gradient at x.
        mu: μ, above 0. With ``μ < c / L`` the steps γ = β/j converge on a c-strongly convex loss whose gradient is
            L-Lipschitz; see `convergence_constant`.

    A direction with the norm of the gradient has α = 1; the condition is then an angle, ``cos θ >= 1 - μ²/2``.

    >>> direction_condition(torch.tensor([1.0, 0.1]), torch.tensor([1.0, 0.0]), mu=0.5).holds
    True

    Reference: Galvan, 3.28 to 3.33.
    """
    number("mu", mu, above=0)
    d, g = ([v] if isinstance(v, Tensor) else list(v) for v in (direction, gradient))
    if [v.shape for v in d] != [v.shape for v in g]:
        raise ValueError("direction must have the shapes of gradient, got others")
    if not any(bool(v.any()) for v in g):
        raise ValueError("gradient must not be zero, there is no angle to it")
    compared = alignment([_double(v) for v in d], [_double(v) for v in g])
    cosine = float(compared.cosine) if float(compared.ratio) else 0.0  # zero has no direction
    return DirectionCondition(max(-1.0, min(1.0, cosine)), float(compared.ratio), mu)


def convergence_constant(strong: float, lipschitz: float, mu: float, moment: float, beta: float, start: float) -> float:
    """Q with ``E ‖x_j - x*‖² <= Q / j`` for steps ``x - (β/j) D`` whose mean meets the condition with μ.

    ``Q = max(β² M² / (2 c̄ β - 1), ‖x_1 - x*‖²)``, ``c̄ = c - μ L``.

    Args:
        strong, lipschitz: c and L of the loss.
        mu: μ, below c / L.
        moment: M, with ``E ‖D‖² <= M²``.
        beta: β of the step size.
        start: ``‖x_1 - x*‖²``.

    Note on the constant: the document's 3.25 has the denominator ``2 c̄ - 1``; the induction needs ``2 c̄ β - 1``.

    >>> convergence_constant(strong=1.0, lipschitz=2.0, mu=0.25, moment=1.0, beta=2.0, start=1.0)
    4.0

    Reference: Galvan, 3.22 to 3.25.
    """
    curvature = strong - mu * lipschitz
    if not curvature > 0:
        raise ValueError(f"mu must be below strong / lipschitz = {strong / lipschitz:g}, got {mu}")
    if not beta > 1 / (2 * curvature):
        raise ValueError(f"beta must be above 1 / 2(c - mu L) = {1 / (2 * curvature):g}, got {beta}")
    return max((beta * moment) ** 2 / (2 * curvature * beta - 1), start)


def _double(v: Tensor) -> Tensor:
    return v.to(torch.complex128 if v.is_complex() else torch.float64)
