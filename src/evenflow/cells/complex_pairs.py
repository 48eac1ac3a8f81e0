"""Complex units as pairs of real ones: all real parts, then all imaginary parts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow.cells.cell import Cell


def rotated(z: Tensor, radius: Tensor, angle: Tensor) -> Tensor:
    """``radius exp(i angle) z``, of complex numbers whose real parts stand before the imaginary parts."""
    x, y = z.chunk(2, -1)
    c, s = radius * angle.cos(), radius * angle.sin()
    return torch.cat([c * x - s * y, s * x + c * y], -1)


def complex_units(hidden_size: int) -> int:
    """The number of complex units among so many real ones."""
    if hidden_size % 2:
        raise ValueError(f"hidden_size must be even, a real and an imaginary part per unit, got {hidden_size}")
    return hidden_size // 2


class ComplexDiagonal(Cell):
    """Base of cells with a diagonal complex recurrence.

    Weights:
        weight_ih ``(H, I)``: the real and the imaginary part of normal numbers w with E|w|² = 1 / I at the start.
    """

    recurrent = ()

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        weights = super().start(input_size, hidden_size, bias, generator)
        drawn = torch.randn(hidden_size, input_size, generator=generator) / math.sqrt(2 * input_size)
        return {**weights, "weight_ih": drawn}
