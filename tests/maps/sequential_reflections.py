"""One reflection at a time: the readable twin of the compact form, for tests.

Algorithms 1 to 3 of Zhang, Lei and Dhillon 2018. `reflect` takes 4k flops for a vector in the last k coordinates once
its squared length is known, `reflect_slope` 3n + 6k.
"""

from __future__ import annotations

import torch
from torch import Tensor


def reflect(h: Tensor, u: Tensor) -> Tensor:
    """Algorithm 2: ``H(u) h`` for columns h ``(n, B)`` and u ``(k,)`` in the last k coordinates."""
    k, square = len(u), u @ u
    if square == 0:
        return h.clone()
    out = h.clone()
    out[-k:] -= torch.outer(2 * u / square, u @ h[-k:])
    return out


def reflect_slope(h: Tensor, u: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 3: the gradients of h and u, from the gradient g of ``H(u) h``; equations 5 and 6."""
    k, square = len(u), u @ u
    if square == 0:
        return g.clone(), torch.zeros_like(u)
    alpha, beta = 2 / square * (u @ h[-k:]), 2 / square * (u @ g[-k:])
    dh = g.clone()
    dh[-k:] -= torch.outer(u, beta)
    du = -(g[-k:] @ alpha) - h[-k:] @ beta + (alpha @ beta) * u
    return dh, du


def product(h: Tensor, us: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """``H(us[0]) H(us[1]) ... h``, and the columns before each reflection, first reflection first."""
    before: list[Tensor] = []
    for u in reversed(us):
        before.insert(0, h)
        h = reflect(h, u)
    return h, before


def product_slope(before: list[Tensor], us: list[Tensor], g: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The gradients of h and of every vector."""
    dus = []
    for h, u in zip(before, us, strict=True):
        g, du = reflect_slope(h, u, g)
        dus.append(du)
    return g, dus


def split(raw: Tensor, m: int, n: int) -> list[Tensor]:
    """Packed numbers as vectors of n, n - 1, ... entries."""
    return list(raw.split([n - j for j in range(m)]))
