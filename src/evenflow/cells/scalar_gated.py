"""The cell of FastRNN and SGORNN: a plain step and the state before, weighted by two scalars."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow import activations
from evenflow.cells.cell import Change, Weights, unchanged, without_gap
from evenflow.cells.elman import Elman
from evenflow.checks import number, one_of

GATES = ("free", "bounded", "fixed")
TINY = 1e-30  # the least β in a power of it


class ScalarGated(Elman):
    """``h_t = α f(W_ih x_t + b + W_hh h_{t-1}) + β h_{t-1}``.

    Args:
        activation: f.
        gates: ``"free"``, α = σ(a) and β = σ(b) (FastRNN); ``"bounded"``, β <= 1 - 2α (SGORNN); or ``"fixed"``, not
            trained (leaky units: β = 1 - α).
        alpha, beta: the starting values of the two gates, or their values if they are fixed.
        gain: see `Elman`.

    With time gaps, ``β^dt`` and ``α (1 - β^dt) / (1 - β)`` take the places of β and α: a gap of a whole number of steps
    is that many steps with one f.

    Weights: ``gate_alpha`` and ``gate_beta``, the scalars a and b, each ``(1)``; none with fixed gates.

    Note on the bound: the document takes α = σ(a) and clips β to 1 - 2α, which is negative once α > 1/2. Here bounded
    gates have α = σ(a) / 2, so α < 1/2 for any a, and β = min(σ(b), 1 - 2α). For small α the two differ by a shift of
    a by ln 2. `test_gates_keep_their_bound` tries every a and b the optimiser can reach.

    >>> cell = cells.ScalarGated("relu", gates="bounded")
    >>> layer = Recurrent(cell, 2, 128, map="rotations")  # the same as ScalarGatedRNN with these arguments
    >>> layer(torch.randn(100, 8, 2))[0].shape
    torch.Size([100, 8, 128])

    References: Kusupati et al. 2018 (FastRNN); the SGORNN document, equations 1 and 3.
    """

    timed = True
    parameters = ("alpha", "beta", "activation")
    equation = "h = α f(W x + b + U h) + β h"

    def __init__(
        self,
        activation: activations.ActivationChoice = "relu",
        gates: str = "free",
        alpha: float = 0.023,
        beta: float = 0.9526,
        gain: float = 1.0,
    ) -> None:
        super().__init__(activation, gain)
        one_of("gates", gates, GATES)
        number("alpha", alpha)
        number("beta", beta)
        self.gates, self.alpha, self.beta = gates, alpha, beta
        if gates == "fixed":
            for name, value in (("alpha", alpha), ("beta", beta)):
                if not 0 <= value <= 1:
                    raise ValueError(f"{name} must be from 0 to 1 with fixed gates, got {value}")
            return
        ceiling = 1.0 if gates == "free" else 0.5
        if not 0 < alpha < ceiling:
            raise ValueError(f"alpha must lie between 0 and {ceiling:g} with {gates} gates, got {alpha}")
        if not 0 < beta < 1:
            raise ValueError(f"beta must lie between 0 and 1, got {beta}")
        if gates == "bounded" and beta > 1 - 2 * alpha:
            raise ValueError(
                f"beta must be at most 1 - 2 alpha = {1 - 2 * alpha:g} with bounded gates, got {beta}; "
                f"lower beta or alpha ({alpha})"
            )

    def settings(self) -> dict[str, object]:
        fixed = {"alpha": self.alpha, "beta": self.beta} if self.gates == "fixed" else {}
        return super().settings() | {"gates": self.gates} | fixed

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        if self.gates == "fixed":
            return super().extra(hidden_size, generator)
        share = self.alpha if self.gates == "free" else 2 * self.alpha
        return super().extra(hidden_size, generator) | {
            "gate_alpha": torch.tensor([math.log(share / (1 - share))]),
            "gate_beta": torch.tensor([math.log(self.beta / (1 - self.beta))]),
        }

    def scalars(self, weights: Weights) -> tuple[Tensor, Tensor]:
        """α and β, each ``(1)``."""
        if self.gates == "fixed":
            like = weights["weight_hh"]
            return like.new_full((1,), self.alpha), like.new_full((1,), self.beta)
        alpha, beta = weights["gate_alpha"].sigmoid(), weights["gate_beta"].sigmoid()
        if self.gates == "bounded":
            alpha = alpha / 2
            beta = torch.minimum(beta, 1 - 2 * alpha)
        return alpha, beta

    def prepare(self, weights: Weights) -> Weights:
        alpha, beta = self.scalars(weights)
        return {**(weights if self.gain == 1 else super().prepare(weights)), "alpha": alpha, "beta": beta}

    def step(  # type: ignore[override]
        self,
        a: Tensor,
        h: Tensor,
        U: Tensor,
        alpha: Tensor,
        beta: Tensor,
        p: Tensor | None = None,
        *,
        read: Change = unchanged,
        normal: Change = unchanged,
    ) -> Tensor:
        a, dt = without_gap(a, h.shape[-1])
        if isinstance(dt, Tensor):
            alpha, beta = _over(dt, alpha, beta)
        return alpha * self.activation(normal(a + read(h) @ U.mT), p) + beta * h


def _over(dt: Tensor, alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """α and β of a gap of the length dt, ``(B, 1)``."""
    below = torch.where(beta < 1, beta, 0.5).clamp(min=TINY)
    grown = torch.expm1(dt * below.log())
    at_one = beta >= 1
    return alpha * torch.where(at_one, dt, grown / (below - 1)), torch.where(at_one, 1.0, 1 + grown)
