"""A diagonal state space model: the recurrence of S4D and S5."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow.cells.complex_pairs import ComplexDiagonal, complex_units, rotated
from evenflow.checks import number, one_of

STARTS = ("legs", "lin", "inv")


class DiagonalSSM(ComplexDiagonal):
    """``z_t = exp(λ d) z_{t-1} + (exp(λ d) - 1) / λ B x_t``: ``z' = λ z + B x`` over a time d in which x is constant.

    z and ``λ = -exp(decay) + i frequency`` are complex; ``d = exp(log_step)`` is the time between two steps, one for
    each unit.

    Shapes:
        n = H / 2 complex units are a state ``(B, H)``, first the n real parts, then the n imaginary parts. H is even.

    Args:
        start: λ at the start, real part -1/2 and imaginary part of unit k: ``"legs"`` (default), the k-th positive one
            among the eigenvalues of the normal part of the HiPPO-LegS matrix of size H; ``"lin"``, π k; ``"inv"``,
            ``H / π (H / (2 k + 1) - 1)``.
        step_min, step_max: the times d at the start, whose logarithm is uniform between. Default: 0.001 and 0.1.

    Weights:
        weight_ih ``(H, I)``, the real and the imaginary part of B, normal of variance 1 / 2I at the start; decay,
        frequency and log_step, each ``(n)``.

    Note on the papers: S5 has inputs that all units read, as here; S4D has a small state for each input. Their layers
    return Re(C z) + D x, and this one z, see `LRUStep`. S5 trains the real part of λ itself; -exp(decay), S4D's form,
    stays negative.

    >>> layer = DiagonalStateSpace(2, 128, start="lin")  # the same as Recurrent(cells.DiagonalSSM("lin"), 2, 128)
    >>> output, z_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    References: Gu et al. 2022 (S4D); Smith, Warrington and Linderman 2023 (S5).
    """

    parameters = ("decay", "frequency", "log_step")
    equation = "z = exp(λ d) z + (exp(λ d) - 1) / λ W x, z complex"

    def __init__(self, start: str = "legs", step_min: float = 0.001, step_max: float = 0.1) -> None:
        one_of("start", start, STARTS)
        number("step_min", step_min, above=0)
        number("step_max", step_max, least=step_min)
        self.choice, self.step_min, self.step_max = start, step_min, step_max

    def settings(self) -> dict[str, object]:
        return {"start": self.choice, "step_min": self.step_min, "step_max": self.step_max}

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        n, (low, high) = complex_units(hidden_size), (math.log(self.step_min), math.log(self.step_max))
        return {
            "decay": torch.full((n,), math.log(0.5)),
            "frequency": frequencies(self.choice, n).float(),
            "log_step": low + (high - low) * torch.rand(n, generator=generator),
        }

    def step(self, a: Tensor, z: Tensor, decay: Tensor, frequency: Tensor, log_step: Tensor) -> Tensor:
        u, v = a.chunk(2, -1)
        re, d = -decay.exp(), log_step.exp()
        radius, angle = (re * d).exp(), frequency * d
        c, s = radius * angle.cos() - 1, radius * angle.sin()
        square = re * re + frequency * frequency
        p, q = (c * re + s * frequency) / square, (s * re - c * frequency) / square
        return rotated(z, radius, angle) + torch.cat([p * u - q * v, q * u + p * v], -1)


def frequencies(start: str, n: int) -> Tensor:
    """The imaginary parts of λ at the start, n of them, see `DiagonalSSM`."""
    k, size = torch.arange(n, dtype=torch.float64), 2 * n
    if start == "lin":
        return math.pi * k
    if start == "inv":
        return size / math.pi * (size / (2 * k + 1) - 1)
    root = (2 * torch.arange(size, dtype=torch.float64) + 1).sqrt()
    below = torch.tril(root[:, None] * root / 2, -1)
    return torch.linalg.eigvalsh(1j * (below - below.mT))[n:]
