"""A few dozen reflections in one CUDA kernel: the matrix, and its gradient. Imported by `reflections` on CUDA alone.

One program owns a few rows of the matrix and multiplies them by all reflections, each of which is a product of two
vectors and a sum; rows do not wait for each other. The packed vectors are read in place. All arithmetic is in float64,
which costs nothing where each step waits for the one before. `Householder.blocked_forward` and `SVD.blocked_forward`
compute the same by products of matrices.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

# With more reflections on a side, products of matrices are faster.
MOST = 128
LARGEST = 4096  # coordinates, 128 of them for each of a block's 32 warps


@triton.jit
def _vector(packed, i, n, j):  # type: ignore[no-untyped-def]
    """Load vector i as ``(1, N)``; it has the coordinates from i on."""
    return tl.load(packed + (i * n - i * (i - 1) // 2 - i) + j, mask=(j >= i) & (j < n), other=0.0)


@triton.jit
def _factor(v):  # type: ignore[no-untyped-def]
    """Return 2/|v|², or 0 for a zero vector."""
    square = tl.sum(v * v, 1)[:, None]
    return tl.where(square > 0, 2 / square, 0.0)


@triton.jit
def _reflect(x, packed, m, n, j, FIRST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Multiply rows x by all reflections, the first of them first or last."""
    following = _vector(packed, 0 if FIRST else m - 1, n, j)
    for step in range(m):
        i = step if FIRST else m - 1 - step
        v = following.to(tl.float64)
        # Load the next vector while this one is used; after the last, the first again.
        following = _vector(packed, (i + 1 if FIRST else i + m - 1) % m, n, j)
        x -= tl.sum(x * v, 1)[:, None] * _factor(v) * v
    return x


@triton.jit
def _reflect_back(y, g, packed, slopes, m, n, j, FIRST: tl.constexpr):  # type: ignore[no-untyped-def]
    """Undo `_reflect` for rows y and their gradient g; write the vectors' gradients, summed over rows, to `slopes`."""
    following = _vector(packed, m - 1 if FIRST else 0, n, j)
    for step in range(m):
        i = m - 1 - step if FIRST else step
        v = following.to(tl.float64)
        following = _vector(packed, (i + m - 1 if FIRST else i + 1) % m, n, j)
        factor = _factor(v)
        a, b = tl.sum(y * v, 1)[:, None], tl.sum(g * v, 1)[:, None]
        y -= factor * a * v  # a reflection undoes itself, and turns the sign of a
        slope = tl.sum(factor * (a * g - b * y) - factor * factor * a * b * v, 0)[None, :]
        tl.store(slopes + (i * n - i * (i - 1) // 2 - i) + j, slope, mask=(j >= i) & (j < n))
        g -= factor * b * v
    return y, g


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    u, v, s, out, m1, m2, n, count1, count2, N: tl.constexpr, ROWS: tl.constexpr, TWO: tl.constexpr
):
    model = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, N)[None, :]
    live = (row < n) & (j < n)
    x = ((row == j) & live).to(tl.float64)
    x = _reflect(x, u + model * count1, m1, n, j, True)
    if TWO:
        x *= tl.load(s + model * n + j, mask=j < n, other=0.0)
        x = _reflect(x, v + model * count2, m2, n, j, False)
    tl.store(out + model * n * n + row * n + j, x, mask=live)


@triton.jit
def _vjp(  # type: ignore[no-untyped-def]
    u, v, s, matrix, gradient, parts, m1, m2, n, count1, count2, N: tl.constexpr, ROWS: tl.constexpr, TWO: tl.constexpr
):
    model = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, N)[None, :]
    live = (row < n) & (j < n)
    u += model * count1
    size = count1 + count2 + n if TWO else count1
    parts += (model * tl.num_programs(0) + tl.program_id(0)) * size
    y = tl.load(matrix + model * n * n + row * n + j, mask=live, other=0.0).to(tl.float64)
    g = tl.load(gradient + model * n * n + row * n + j, mask=live, other=0.0).to(tl.float64)
    if TWO:
        y, g = _reflect_back(y, g, v + model * count2, parts + count1, m2, n, j, False)
        # The rows before the diagonal, computed again: a singular value to divide by may be zero.
        y = _reflect(((row == j) & live).to(tl.float64), u, m1, n, j, True)
        tl.store(parts + count1 + count2 + j, tl.sum(g * y, 0)[None, :], mask=j < n)
        g *= tl.load(s + model * n + j, mask=j < n, other=0.0)
    y, g = _reflect_back(y, g, u, parts, m1, n, j, True)


def suits(n: int, *counts: int) -> bool:
    """Return True if the kernels are faster than products for `counts` reflections of n coordinates on each side."""
    return n <= LARGEST and all(1 <= m <= MOST for m in counts)


Right = tuple[int, Tensor, Tensor]  # the right side of an SVD: number of reflections, packed vectors, singular values


def forward(n: int, m: int, u: Tensor, right: Right | None = None) -> Tensor:
    """Return ``H_n(u_n) ... H_k(u_k)`` ``(..., n, n)``, or its product with diag(s) and the right reflections.

    Shapes:
        u ``(..., mn - m(m-1)/2)``, v likewise, s ``(..., n)``.
    """
    out = u.new_empty(*u.shape[:-1], n, n)
    grid, options = _launch_options(n, u.shape[:-1].numel())
    m2, v, s = right or (0, u, u)
    counts = (m, m2, n, u.shape[-1], v.shape[-1])
    with torch.cuda.device(u.device):
        _forward[grid](u.contiguous(), v.contiguous(), s.contiguous(), out, *counts, TWO=right is not None, **options)
    return out


def vjp(G: Tensor, W: Tensor, n: int, m: int, u: Tensor, right: Right | None = None) -> Tensor:
    """Return the gradients of u, or of u, v and s in one tensor, from the matrix W and its gradient G."""
    grid, options = _launch_options(n, u.shape[:-1].numel())
    m2, v, s = right or (0, u, u)
    counts = (m, m2, n, u.shape[-1], v.shape[-1])
    size = u.shape[-1] if right is None else u.shape[-1] + v.shape[-1] + n
    parts = u.new_empty(*u.shape[:-1], grid[0], size)
    inputs = (x.contiguous() for x in (u, v, s, W, G))
    with torch.cuda.device(u.device):
        _vjp[grid](*inputs, parts, *counts, TWO=right is not None, **options)
    return parts.sum(-2)


def _launch_options(n: int, models: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the grid of programs and their compile-time options: a warp for every 128 coordinates."""
    N = triton.next_power_of_2(n)
    rows = 2 if N <= 128 else 4 if N <= 512 else 8
    return (triton.cdiv(n, rows), models), {"N": N, "ROWS": rows, "num_warps": max(1, N // 128)}
