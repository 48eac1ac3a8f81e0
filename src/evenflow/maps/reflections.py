"""Products of reflections in compact form: what the Householder and SVD maps share.

``H_n(u_n) ... H_k(u_k)`` with ``H(u) = I - 2uuᵀ/|u|²`` equals ``I - VᵀY``, ``Y = S⁻¹V``: V ``(..., m, n)`` holds the
vectors as rows, u_n first, each in the last coordinates of its row, and S ``(..., m, m)`` is ``VVᵀ`` above the diagonal
and half of it on the diagonal. S is kept in float64: there rounding costs most, and with it a single-precision product
stays orthogonal to 3e-7. A zero vector is the identity and has gradient zero.

Reference: Joffrain et al. 2006; Zhang, Lei and Dhillon 2018.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from evenflow import init
from evenflow.maps.differentiated import addmm
from evenflow.runtime.triton_kernels import triton_module

# Added to half of each squared length, so that a zero vector is not divided by; below any single-precision length.
TINY = 1e-300
# A column this close to its place is taken to be there: no reflection.
IN_PLACE = 1e-12


def count(m: int, n: int) -> int:
    """How many numbers m reflections of n coordinates take."""
    return m * n - m * (m - 1) // 2


def kernels(raw: Tensor, n: int, *counts: int) -> ModuleType | None:
    """The CUDA kernels, where they can run and reflections of n coordinates are few."""
    found = triton_module("evenflow.maps.reflections_cuda", raw)
    return found if found is not None and found.suits(n, *counts) else None


def places(m: int, n: int) -> Tensor:
    """Where the packed numbers go in V, counted along its rows."""
    i, j = torch.triu_indices(m, n)
    return i * n + j


def vectors(raw: Tensor, filled: Tensor, m: int, n: int) -> Tensor:
    """V of the packed numbers."""
    return raw.new_zeros(*raw.shape[:-1], m * n).index_copy_(-1, filled, raw).unflatten(-1, (m, n))


def compact(V: Tensor) -> tuple[Tensor, Tensor]:
    """S (float64) and Y of the vectors V."""
    long = V.double()
    S = (long @ long.mT).triu()
    S.diagonal(dim1=-2, dim2=-1).mul_(0.5).add_(TINY)
    return S, torch.linalg.solve_triangular(S, long, upper=True).to(V.dtype)


def compact_vjp(dV: Tensor, dY: Tensor, V: Tensor, S: Tensor, Y: Tensor) -> Tensor:
    """The whole gradient of V, from what reaches V directly and what reaches it through Y."""
    Z = torch.linalg.solve_triangular(S.mT, dY.double(), upper=False).to(V.dtype)
    T = (Z @ Y.mT).triu()
    T.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    return addmm(dV + Z, T + T.mT, V, 1, -1)


def first_vectors(m: int, n: int, generator: torch.Generator | None) -> Tensor:
    """Starting numbers: Glorot-uniform vectors scaled to length one, packed."""
    if m == 0:
        return torch.zeros(0)
    V = init.glorot_uniform(m, n, generator=generator, device="cpu").triu()
    # Two single coordinates can be drawn as zero; length one is then not to be had.
    V = V / V.norm(dim=1, keepdim=True).clamp_min(torch.finfo(V.dtype).tiny)
    return V.flatten()[places(m, n)]


def reduce(columns: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Vectors V whose product brings orthonormal columns ``(..., n, c)`` to the first of I, and what they leave.

    Householder's QR factorization with a positive diagonal. With m >= min(n, c) nothing is left to do.
    """
    Q = columns.clone()
    n, c = Q.shape[-2:]
    V = Q.new_zeros(*Q.shape[:-2], m, n)
    for j in range(min(m, c)):
        x = Q[..., j:, j]
        head, tail = x[..., :1], x[..., 1:]
        square = tail.square().sum(-1, keepdim=True)
        # u = x - e₁, whose first entry is written so that it does not cancel.
        first = torch.where(head > 0, -square / (1 + head.abs()), head - 1)
        u = torch.cat((first, tail), -1)
        u = u / u.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(u.dtype).tiny)
        u = torch.where((square.sqrt() <= IN_PLACE) & (head > 0), torch.zeros_like(u), u).unsqueeze(-1)
        Q[..., j:, j:] -= 2 * u @ (u.mT @ Q[..., j:, j:])
        V[..., j, j:] = u.squeeze(-1)
    return V, Q


def left_over(Q: Tensor) -> float:
    """How far what `reduce` leaves is from the columns of I."""
    return (Q - torch.eye(*Q.shape[-2:], dtype=Q.dtype, device=Q.device)).abs().max().item()
