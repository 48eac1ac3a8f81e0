"""Table 1 of Zhang, Lei and Dhillon 2018: operations of one step of a Spectral-RNN, counted while they are carried out.

u and v are vectors of k numbers in the last k of n coordinates, and their squared lengths are known beforehand, as in
the document. Constants that depend on neither n nor k are O(1) for one reflection and O(n) for a step.
"""

from __future__ import annotations

import pytest
import sequential_reflections
import torch
from torch import Tensor

EXACT = 1e-12
SCALARS = 4  # operations on single numbers in one reflection


class Counter:
    """Vector operations that count the additions and multiplications of numbers."""

    def __init__(self) -> None:
        self.flops = 0

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        self.flops += 2 * len(a)
        return a @ b

    def scaled(self, c: Tensor, a: Tensor) -> Tensor:
        self.flops += len(a)
        return c * a

    def sum(self, a: Tensor, b: Tensor) -> Tensor:
        self.flops += len(a)
        return a + b

    def number(self, c: Tensor) -> Tensor:
        """The result of one operation on two numbers."""
        self.flops += 1
        return c


def hprod(count: Counter, h: Tensor, u: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 2: H(u) h, and the α that the way back uses again."""
    k = len(u)
    alpha = count.number(2 / square * count.dot(u, h[-k:]))
    changed = count.sum(h[-k:], count.scaled(-alpha, u))
    return torch.cat([h[:-k], changed]), alpha


def hgrad(count: Counter, h: Tensor, u: Tensor, g: Tensor, square: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 3: the gradients by h and, on all n coordinates, by u."""
    k = len(u)
    beta = count.number(2 / square * count.dot(u, g[-k:]))
    dh = torch.cat([g[:-k], count.sum(g[-k:], count.scaled(-beta, u))])
    du = count.sum(count.scaled(-alpha, g), count.scaled(-beta, h))  # n numbers each: 3n
    du[-k:] = count.sum(du[-k:], count.scaled(count.number(alpha * beta), u))
    return dh, du


def drawn(n: int, m: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(n + m)
    draw = torch.randn(2, n, generator=generator, dtype=torch.float64)
    vectors = [torch.randn(k, generator=generator, dtype=torch.float64) for k in range(n, n - m, -1)]
    return draw[0], draw[1], vectors


def one_side(n: int, m: int) -> tuple[int, int]:
    """The operations of m reflections forward and back, whose results are those of the plain twin."""
    h, g, us = drawn(n, m)
    forward, back = Counter(), Counter()
    states, alphas = [h], []
    for u in reversed(us):
        state, alpha = hprod(forward, states[-1], u, u @ u)
        states.append(state)
        alphas.append(alpha)
    expected, before = sequential_reflections.product(h[:, None], us)
    torch.testing.assert_close(states[-1], expected[:, 0], atol=EXACT, rtol=EXACT)
    dh, slopes = g, []
    for u, alpha, state in zip(us, reversed(alphas), reversed(states[:-1]), strict=True):
        dh, du = hgrad(back, state, u, dh, u @ u, alpha)
        slopes.append(du[-len(u) :])
    expected_dh, expected_dus = sequential_reflections.product_slope(before, us, g[:, None])
    torch.testing.assert_close(dh, expected_dh[:, 0], atol=EXACT, rtol=EXACT)
    for found, wanted in zip(slopes, expected_dus, strict=True):
        torch.testing.assert_close(found, wanted, atol=EXACT, rtol=EXACT)
    return forward.flops, back.flops


@pytest.mark.parametrize(("n", "k"), [(8, 8), (50, 20), (200, 1)])
def test_one_reflection(n, k):
    h, g, (u, *_) = drawn(n, 1)[0], drawn(n, 1)[1], [torch.randn(k, dtype=torch.float64)]
    forward, back = Counter(), Counter()
    _, alpha = hprod(forward, h, u, u @ u)
    hgrad(back, h, u, g, u @ u, alpha)
    assert abs(forward.flops - 4 * k) <= SCALARS
    assert abs(back.flops - (3 * n + 6 * k)) <= SCALARS


@pytest.mark.parametrize(("n", "m"), [(16, 16), (64, 16), (128, 32), (128, 128)])
def test_a_step_forward(n, m):
    """``4n(m_1 + m_2) - 2m_1² - 2m_2² + O(n)``; the O(n) are the singular values and what is left of sums."""
    forward, _ = one_side(n, m)
    assert abs(2 * forward + n - (8 * n * m - 4 * m**2)) <= 8 * n


@pytest.mark.parametrize(("n", "m"), [(64, 16), (128, 32), (128, 128)])
def test_the_last_row_of_the_document_contradicts_its_own_algorithm(n, m):
    """The sum of 3n + 6k over m vectors is ``9nm - 3m² + O(n)``; ``6nm - 1.5m²`` is printed."""
    _, back = one_side(n, m)
    assert abs(back - (9 * n * m - 3 * m**2)) <= 8 * n
    assert back - (6 * n * m - 1.5 * m**2) > n * m


@pytest.mark.parametrize(("n", "m"), [(128, 32), (256, 64)])
def test_orthogonal_reflections_forward_are_fewer_than_printed(n, m):
    """``4nm - 2m² + O(n)`` by the same sum; the document prints ``4nm - m²`` for the oRNN."""
    forward, _ = one_side(n, m)
    assert abs(forward - (4 * n * m - 2 * m**2)) <= 4 * n
