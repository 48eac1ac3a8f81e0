"""The cell of RotRNN: pairs of units that are rotated, with one decay for each head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow.cells.cell import Cell, Matrix, Weights
from evenflow.cells.complex_pairs import complex_units, rotated
from evenflow.checks import number, whole_number


class RotRNNStep(Cell):
    """``z_t = γ R(θ) z_{t-1} + √(1 - γ²) / |W| W x_t`` with plane rotations R and ``γ = exp(-exp(decay))``.

    The units are parted into heads, each with a γ and with the norm |W| of its rows of W_ih. An input of independent
    numbers of variance 1 then keeps E|z|² of a head at 1, at any time and for any γ.

    Shapes:
        n = H / 2 pairs of units are a state ``(B, H)``, first the n first ones, then the n second ones. H is even.

    Args:
        heads: of the n pairs. Default: 1.
        gamma_min, gamma_max: γ at the start, whose ``log(-log γ)`` is uniform between. Default: 0.9 and 0.999.
        max_phase: the angles at the start are uniform from 0 to this. Default: 2 π.

    Weights:
        weight_ih ``(H, I)``; decay ``(heads)``; phase ``(n)``, the θ.

    Note on the basis: the paper has ``P R Pᵀ`` with an orthogonal P in the place of R. z is Pᵀ times its state, W is Pᵀ
    times its input matrix, and P a part of what reads z; see `test_rotations_in_any_basis`. What reads z is also its C.

    >>> layer = RotRNN(2, 128, heads=4)  # the same as Recurrent(cells.RotRNNStep(heads=4), 2, 128)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Biegun et al. 2024.
    """

    recurrent = ()
    parameters = ("decay", "phase")
    equation = "z = γ R(θ) z + √(1 - γ²) W x / |W|"

    def __init__(
        self, heads: int = 1, gamma_min: float = 0.9, gamma_max: float = 0.999, max_phase: float = 2 * math.pi
    ) -> None:
        whole_number("heads", heads, 1)
        number("gamma_max", gamma_max, above=0, below=1)
        number("gamma_min", gamma_min, above=0, most=gamma_max)
        number("max_phase", max_phase, above=0, most=2 * math.pi)
        self.heads, self.gamma_min, self.gamma_max, self.max_phase = heads, gamma_min, gamma_max, max_phase

    def settings(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("heads", "gamma_min", "gamma_max", "max_phase")}

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        if complex_units(hidden_size) % self.heads:
            raise ValueError(f"hidden_size / 2 must be a multiple of heads = {self.heads}, got {hidden_size} / 2")
        return ()

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        low, high = (math.log(-math.log(gamma)) for gamma in (self.gamma_max, self.gamma_min))
        return {
            "decay": low + (high - low) * torch.rand(self.heads, generator=generator),
            "phase": self.max_phase * torch.rand(complex_units(hidden_size), generator=generator),
        }

    def prepare(self, weights: Weights) -> Weights:
        W = weights["weight_ih"]
        gamma = (-weights["decay"].exp()).exp()
        by_head = W.unflatten(0, (2, self.heads, -1))
        squared = by_head.square().sum((0, 2, 3))
        factor = ((1 - gamma.square()) / squared.clamp(min=torch.finfo(W.dtype).tiny)).sqrt()
        scaled = (by_head * factor[:, None, None]).flatten(0, 2)
        n = W.shape[0] // 2
        return {**weights, "weight_ih": scaled, "decay": gamma.repeat_interleave(n // self.heads)}

    def step(self, a: Tensor, z: Tensor, gamma: Tensor, phase: Tensor) -> Tensor:
        return rotated(z, gamma, phase) + a
