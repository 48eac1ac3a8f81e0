"""The linear recurrent unit: a diagonal complex recurrence whose eigenvalues start in a ring."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow.cells.complex_pairs import ComplexDiagonal, complex_units, rotated
from evenflow.checks import number


class LRUStep(ComplexDiagonal):
    """``z_t = λ z_{t-1} + exp(γ) B x_t`` with complex z and ``λ = exp(-exp(ν) + i exp(θ))``, so that |λ| < 1.

    Shapes:
        n = H / 2 complex units are a state ``(B, H)``, first the n real parts, then the n imaginary parts. H is even.

    Args:
        r_min, r_max: the ring of the complex plane in which λ starts, uniform over its area. Default: 0.9 and 0.999.
        max_phase: the largest angle of λ at the start, above 0 and at most 2 π. Default: 2 π.

    Weights:
        weight_ih ``(H, I)``, the real and the imaginary part of B, normal of variance 1 / 2I at the start; decay
        ``(n)``, ν; phase ``(n)``, θ; scale ``(n)``, γ, with exp(2 γ) = 1 - |λ|² at the start.

    Note on the output: the paper's layer returns Re(C z) + D x. Here it returns z, both parts, and the linear map that
    reads it, such as the readout of a model, is C; a residual block adds x. `test_a_readout_is_the_papers_output` shows
    this.

    >>> layer = LRU(2, 128, r_min=0.99)  # the same as Recurrent(cells.LRUStep(r_min=0.99), 2, 128)
    >>> output, z_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Orvieto et al. 2023.
    """

    parameters = ("decay", "phase", "scale")
    equation = "z = λ z + exp(γ) W x, λ = exp(-exp(ν) + i exp(θ))"

    def __init__(self, r_min: float = 0.9, r_max: float = 0.999, max_phase: float = 2 * math.pi) -> None:
        number("r_max", r_max, above=0, most=1)
        number("r_min", r_min, least=0, below=r_max)
        number("max_phase", max_phase, above=0, most=2 * math.pi)
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase

    def settings(self) -> dict[str, object]:
        return {"r_min": self.r_min, "r_max": self.r_max, "max_phase": self.max_phase}

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        u, v = torch.rand(2, complex_units(hidden_size), generator=generator, dtype=torch.float64)
        squared = self.r_min**2 + u * (self.r_max**2 - self.r_min**2)
        drawn = (-squared.log() / 2).log(), (self.max_phase * (1 - v)).log(), (1 - squared).log() / 2
        return dict(zip(self.parameters, (p.float() for p in drawn), strict=True))

    def step(self, a: Tensor, z: Tensor, decay: Tensor, phase: Tensor, scale: Tensor) -> Tensor:
        return rotated(z, (-decay.exp()).exp(), phase.exp()) + torch.cat([scale.exp()] * 2, -1) * a
