"""Complex units as pairs of real ones: all real parts, then all imaginary parts."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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


def complex_normal(hidden_size: int, input_size: int, generator: torch.Generator | None) -> Tensor:
    """Real and imaginary parts of normal numbers with E|w|² = 1 / input_size, ``(hidden_size, input_size)``."""
    return torch.randn(hidden_size, input_size, generator=generator) / math.sqrt(2 * input_size)
