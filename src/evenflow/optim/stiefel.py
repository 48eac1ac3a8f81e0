"""The arithmetic of matrices with orthonormal columns: tangents, Cayley's step, and the way back from rounding."""

from __future__ import annotations

import torch
from torch import Tensor

# The longest series worth its products: on a CPU four products cost more than a solution, on a GPU far less.
LONGEST = {"cpu": 3}
LONGEST_ELSEWHERE = 31


def cayley_step(M: Tensor, Z: Tensor) -> Tensor:
    """``(I + X)⁻¹ (I - X) M`` with the skew ``X = Z Mᴴ - M Zᴴ``: columns that are orthonormal stay so.

    With Z = η/2 G this is the step of geodesic descent. X is n x n but of rank 2p at most, so a narrow M never forms
    it: with U = [Z, M] and V = [M, -Z], X = U Vᴴ and the step is ``M - 2 U (I + Vᴴ U)⁻¹ Vᴴ M``, in O(n p²). At a square
    M, X = M S Mᴴ with ``S = Mᴴ Z - Zᴴ M``, and the step is ``M (I + S)⁻¹ (I - S)``.

    Shapes:
        M, Z, result: ``(B, n, p)``, p <= n.
    """
    n, p = M.shape[-2:]
    if n == p:
        return turned(M, skew(M, Z))
    if 2 * p < n:
        U, V = torch.cat([Z, M], -1), torch.cat([M, -Z], -1)
        inside = V.mH @ U
        inside.diagonal(dim1=-2, dim2=-1).add_(1)
        return torch.baddbmm(M, U, torch.linalg.solve(inside, V.mH @ M), alpha=-2)
    P = M @ Z.mH
    return turned(M.mH, P - P.mH).mH  # the transpose of the step, and of X


def skew(M: Tensor, Z: Tensor) -> Tensor:
    """``Mᴴ Z - Zᴴ M``, ``(B, p, p)``."""
    P = M.mH @ Z
    return P - P.mH


def turned(M: Tensor, S: Tensor) -> Tensor:
    """``M (I + S)⁻¹ (I - S) = 2 M (I + S)⁻¹ - M`` for a skew S, which may be overwritten, and orthonormal rows of M.

    A short series where S is small, else one LU factorisation; no inverse. The series ``(I + S)⁻¹ = Σ (-S)ʲ`` cut after
    degree d leaves ``M (I + S)⁻¹ Sᵈ⁺¹``, no entry of which is above c |S|ᵈ: c is the length of the longest column of S,
    and |S| is at most the largest sum of a column's absolute values and the root of the sum of all squares.
    """
    most = LONGEST.get(S.device.type, LONGEST_ELSEWHERE)
    columns = torch.linalg.vector_norm(S, dim=-2)
    bounds = torch.stack([columns.amax(), S.abs().sum(-2).amax(), torch.linalg.vector_norm(columns, dim=-1).amax()])
    allowed = torch.finfo(S.dtype).eps / 4
    if recording(S):  # nobody can look: the longest series, and not a number where that is too short
        close = 2 * bounds[0] * bounds[1:].amin() ** LONGEST_ELSEWHERE <= allowed
        return torch.where(close, _series(M, S, LONGEST_ELSEWHERE), torch.nan)
    longest, *bound = bounds.tolist()  # the one time that numbers are read from the device
    degrees = (1, 2, 3, 7, 15, 31)
    degree = next((d for d in degrees if d <= most and 2 * longest * min(bound) ** d <= allowed), None)
    if degree is None:
        S.diagonal(dim1=-2, dim2=-1).add_(1)
        factors, pivots, _ = torch.linalg.lu_factor_ex(S)
        return torch.linalg.lu_solve(factors, pivots, M, left=False).mul_(2).sub_(M)
    return _series(M, S, degree)


def recording(value: Tensor) -> bool:
    """Whether work on this tensor is being recorded as a CUDA graph, so that no number of it can be looked at."""
    return value.is_cuda and torch.cuda.is_current_stream_capturing()


def _series(M: Tensor, S: Tensor, degree: int) -> Tensor:
    """``2 M Σ (-S)ʲ - M`` up to a degree of 1, 2 or 2ᵏ - 1."""
    if degree <= 3:
        total, term = M.clone(), M
        for j in range(degree):
            term = term @ S
            total.add_(term, alpha=2 if j % 2 else -2)
        return total
    # Up to degree 2ᵏ - 1 as (I - S)(I + S²)(I + S⁴)...: 2k - 1 products.
    Y = torch.baddbmm(M, M, S, alpha=-1)
    while degree > 1:
        S = S @ S
        Y = torch.baddbmm(Y, Y, S)
        degree //= 2
    return Y.mul_(2).sub_(M)


def tangent(M: Tensor, V: Tensor) -> Tensor:
    """The nearest tangent at M, ``V - M (Mᴴ V + Vᴴ M)/2``."""
    inside = M.mH @ V
    return torch.baddbmm(V, M, inside + inside.mH, alpha=-0.5)


def canonical_gradient(M: Tensor, G: Tensor) -> Tensor:
    """``A M = G - M Gᴴ M`` with ``A = G Mᴴ - M Gᴴ``: the tangent along which the step begins; G is ∂L/∂M."""
    return torch.baddbmm(G, M, G.mH @ M, alpha=-1)


def along(M: Tensor, V: Tensor) -> Tensor:
    """The Z whose Cayley step at M begins along -2V for a tangent V: ``V - M Mᴴ V / 2``."""
    return torch.baddbmm(V, M, M.mH @ V, alpha=-0.5)


def polish(M: Tensor) -> Tensor:
    """One step of Newton and Schulz towards orthonormal columns, ``M - M (Mᴴ M - I)/2``: what was ε off is ε² off."""
    gram = M.mH @ M
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return torch.baddbmm(M, M, gram, alpha=-0.5)
