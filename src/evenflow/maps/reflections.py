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
from evenflow.maps.matrix_operations import addmm
from evenflow.runtime.triton_kernels import triton_module

# Added to half of each squared length, against division by zero; below any single-precision length.
TINY = 1e-300
# A column this close to its column of I needs no reflection.
IN_PLACE = 1e-12


def count(m: int, n: int) -> int:
    """Return the number of free numbers of m reflections of n coordinates."""
    return m * n - m * (m - 1) // 2


def kernels(raw: Tensor, n: int, *counts: int) -> ModuleType | None:
    """Return the module of CUDA kernels, or None if they cannot run or are slower than products of matrices."""
    module = triton_module("evenflow.maps.reflections_cuda", raw)
    return module if module is not None and module.suits(n, *counts) else None


def places(m: int, n: int, device: torch.device) -> Tensor:
    """Return the flat indices in V of the packed numbers."""
    i, j = torch.triu_indices(m, n, device=device)
    return i * n + j


def vectors(raw: Tensor, filled: Tensor, m: int, n: int) -> Tensor:
    """Return V of the packed numbers."""
    return raw.new_zeros(*raw.shape[:-1], m * n).index_copy_(-1, filled, raw).unflatten(-1, (m, n))


def compact(V: Tensor) -> tuple[Tensor, Tensor]:
    """Return S (float64) and Y of the vectors V."""
    long = V.double()
    S = (long @ long.mT).triu()
    S.diagonal(dim1=-2, dim2=-1).mul_(0.5).add_(TINY)
    return S, torch.linalg.solve_triangular(S, long, upper=True).to(V.dtype)


def compact_vjp(dV: Tensor, dY: Tensor, V: Tensor, S: Tensor, Y: Tensor) -> Tensor:
    """Return the gradient of V, from its direct part and the gradient of Y."""
    Z = torch.linalg.solve_triangular(S.mT, dY.double(), upper=False).to(V.dtype)
    T = (Z @ Y.mT).triu()
    T.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    return addmm(dV + Z, T + T.mT, V, 1, -1)


def first_vectors(m: int, n: int, generator: torch.Generator | None) -> Tensor:
    """Return the initial numbers: Glorot-uniform vectors scaled to length one, packed."""
    if m == 0:
        return torch.zeros(0)
    V = init.glorot_uniform(m, n, generator=generator, device="cpu").triu()
    # A vector with a single coordinate can be drawn as zero, which has no direction.
    V = V / V.norm(dim=1, keepdim=True).clamp_min(torch.finfo(V.dtype).tiny)
    return V.flatten()[places(m, n, V.device)]


def reduce(columns: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return m vectors V whose reflections bring orthonormal columns ``(..., n, c)`` to those of I, and the result.

    This is Householder's QR factorization with a positive diagonal. With m >= min(n, c) the result is I.
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
    """Return the largest difference between the result of `reduce` and the columns of I."""
    return (Q - torch.eye(*Q.shape[-2:], dtype=Q.dtype, device=Q.device)).abs().max().item()
