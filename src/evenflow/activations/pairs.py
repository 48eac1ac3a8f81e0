"""The activations of pairs of units i and i + H/2."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from evenflow.activations.activation import activation


@activation("(max(a_i, a_j), min(a_i, a_j)), j = i + H/2", slopes=(1, 1), pairs="sorts pairs of units")
def oplu(a: Tensor) -> Tensor:
    """``(max(a_i, a_j), min(a_i, a_j))`` with j = i + H/2: sorts pairs of units.

    Its Jacobian is a permutation, so norms pass unchanged both ways (Chernodub and Nowicki 2016).
    """
    left, right = a.chunk(2, -1)
    swap = left < right
    return torch.cat([torch.where(swap, right, left), torch.where(swap, left, right)], -1)


def _complex_start(size: int, generator: torch.Generator | None) -> Tensor:
    return torch.empty(size // 2).uniform_(-0.01, 0.01, generator=generator)


def _complex_slopes(p: Tensor | None) -> tuple[float, float]:
    return (0, 1) if p is not None and bool((p <= 0).all()) else (0, inf)


@activation(
    "a max(|a| + p, 0) / |a|, a = (a_i, a_j), j = i + H/2",
    slopes=_complex_slopes,
    start=_complex_start,
    pairs="shrinks pairs of units",
)
def complex_modrelu(a: Tensor, p: Tensor) -> Tensor:
    """``a max(|a| + p, 0) / |a|``, a trained p per pair: shrinks pairs of units and keeps their direction.

    A pair is a complex number, unit i its real and unit i + H/2 its imaginary part (Arjovsky et al. 2016). At a = 0
    there is no direction, and the value and its gradient are 0. Along a pair's direction the slope is 0 or 1, across it
    0 or ``1 + p / |a|``, which with p > 0 has no bound.
    """
    left, right = a.chunk(2, -1)
    square = left * left + right * right
    size = square.masked_fill(square == 0, 1.0).sqrt()  # the root has no slope at 0
    scale = torch.relu(1 + p / size).masked_fill(square == 0, 0.0)
    return torch.cat([scale * left, scale * right], -1)
