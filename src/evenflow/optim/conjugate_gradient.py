"""The conjugate gradient method with an early stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# The iterates with the numbers ⌈1.3ʲ⌉ are kept: a few, denser at the start.
SPREAD = 1.3


class Iterates(NamedTuple):
    """The result of `conjugate_gradient`.

    Attributes:
        kept: some of the iterates and the last one, in order.
        iterations: number of iterations, each of which takes one product.
        values: φ after each iteration, φ(x) = ½ xᵀAx - bᵀx.
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
    """Approximate the x that minimises ``φ(x) = ½ xᵀAx - bᵀx`` for a positive definite A, the solution of A x = b.

    Shapes:
        b, start and every x: ``(N)``.

    Args:
        product: function from v to A v.
        start: the initial x.
        iterations: the largest number of iterations.
        tolerance: stop if the last k = max(10, i/10) iterations lowered φ by less than ``k · tolerance · |φ|``; 0 to
            stop when the residual is as small as rounding errors.

    >>> A, b = torch.tensor([[2.0, 0.0], [0.0, 4.0]]), torch.tensor([1.0, 1.0])
    >>> conjugate_gradient(lambda v: A @ v, b, torch.zeros_like(b), tolerance=0).kept[-1]
    tensor([0.5000, 0.2500])

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
        step = square / curvature
        next_x, next_r = x + step * p, r - step * Ap
        new = next_r.dot(next_r)
        # The only synchronisation with a GPU.
        curved, squared, value = torch.stack([curvature, new, next_x.dot(next_r + b)]).tolist()
        if not curved > 0:
            break  # no curvature along p: only rounding errors are left, or a number is not finite
        x, r, residual = next_x, next_r, squared**0.5
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
