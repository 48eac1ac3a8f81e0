"""The conjugate gradient method, stopped early."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Iterates number ⌈1.3ʲ⌉ are kept: a handful, denser at the start, to go back to.
SPREAD = 1.3


class Iterates(NamedTuple):
    """Where the method went.

    Attributes:
        kept: some of its iterates and the last, in order.
        iterations: how many products it took.
        values: φ after each of them, φ(x) = ½ xᵀAx - bᵀx.
    """

    kept: list[Tensor]
    iterations: int
    values: list[float]


def conjugate_gradient(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    start: Tensor,
    iterations: int = 100,
    tolerance: float = 5e-4,
) -> Iterates:
    """Towards the x that minimises ``φ(x) = ½ xᵀAx - bᵀx`` for a positive A, the solution of A x = b.

    Shapes:
        b, start and every x: ``(N)``.

    Args:
        product: v to A v.
        start: the first x.
        iterations: at most this many.
        tolerance: stop when the last k = max(10, i/10) iterations lowered φ by less than k times this share of it;
            0 to go on until the residual is down to rounding.

    >>> conjugate_gradient(lambda v: A @ v, b, torch.zeros_like(b), tolerance=0).kept[-1]

    References: Hestenes and Stiefel 1952; Martens 2010 (when to stop).
    """
    x, size = start.clone(), float(torch.linalg.vector_norm(b))
    r = b - product(x) if bool(x.any()) else b.clone()
    p, square = r.clone(), r.dot(r)
    values = [-0.5 * float(x.dot(r + b))]
    kept, next_kept, i, residual = [], 1.0, 0, float(square) ** 0.5
    while i < iterations and residual > torch.finfo(b.dtype).eps * size:
        Ap = product(p)
        curvature = p.dot(Ap)
        rate = square / curvature
        further, left = x + rate * p, r - rate * Ap
        new = left.dot(left)
        # The one place where a GPU is waited for.
        bend, squared, value = torch.stack([curvature, new, further.dot(left + b)]).tolist()
        if not bend > 0:
            break  # no curvature along p: rounding has taken over, or a number is not finite
        x, r, residual = further, left, squared**0.5
        p, square = r + (new / square) * p, new
        values.append(-0.5 * value)
        i += 1
        if i >= next_kept:
            kept.append(x)
            while i >= next_kept:
                next_kept *= SPREAD
        k = max(10, i // 10)
        if i > k and values[-1] < 0 and values[-1 - k] - values[-1] < -k * tolerance * values[-1]:
            break
    if not kept or kept[-1] is not x:
        kept.append(x)
    return Iterates(kept, i, values[1:])
