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
    it: with U = [Z, M] and V = [M, -Z], X = U Vᴴ and the step is ``M - 2 U (I + Vᴴ U)⁻¹ Vᴴ M``, in O(n p²).

    Shapes:
        M, Z, result: ``(B, n, p)``, p <= n.
    """
    n, p = M.shape[-2:]
    if 2 * p < n:
        U, V = torch.cat([Z, M], -1), torch.cat([M, -Z], -1)
        inside = V.mH @ U
        inside.diagonal(dim1=-2, dim2=-1).add_(1)
        return torch.baddbmm(M, U, torch.linalg.solve(inside, V.mH @ M), alpha=-2)
    return turned(skew(Z, M), M)


def skew(Z: Tensor, M: Tensor) -> Tensor:
    """``Z Mᴴ - M Zᴴ``, ``(B, n, n)``."""
    P = Z @ M.mH
    return P - P.mH


def turned(X: Tensor, M: Tensor) -> Tensor:
    """``(I + X)⁻¹ (I - X) M = 2 (I + X)⁻¹ M - M`` for a skew X.

    A short series where X is small, else one LU factorisation; no inverse. The series ``(I + X)⁻¹ = Σ (-X)ʲ`` cut
    after degree d is off by at most |X|ᵈ⁺¹, and |X| by the largest sum of a row's absolute values or by the root of the
    sum of squares, whichever is less.
    """
    most = LONGEST.get(X.device.type, LONGEST_ELSEWHERE)
    rows, squares = X.abs().sum(-1).amax(-1), torch.linalg.matrix_norm(X)
    bound = float(torch.minimum(rows, squares).max())  # the one number that is read from the device
    allowed = torch.finfo(X.dtype).eps / 4
    for degree in (1, 2, 3):
        if 2 * bound ** (degree + 1) <= allowed:
            Y = M
            for _ in range(degree):
                Y = torch.baddbmm(M, X, Y, alpha=-1)
            return 2 * Y - M
    degree = 7
    while degree <= most:
        if 2 * bound ** (degree + 1) <= allowed:
            return 2 * _doubled(X, M, degree) - M
        degree = 2 * degree + 1
    # (I + X)⁻¹ M from the right: Mᴴ (I - X)⁻¹ is its transpose, and torch solves from that side in half the time.
    X = -X
    X.diagonal(dim1=-2, dim2=-1).add_(1)
    factors, pivots, _ = torch.linalg.lu_factor_ex(X)
    return 2 * torch.linalg.lu_solve(factors, pivots, M.mH, left=False).mH - M


def _doubled(X: Tensor, M: Tensor, degree: int) -> Tensor:
    """``Σ (-X)ʲ M`` up to degree 2ᵏ - 1 as ``(I - X)(I + X²)(I + X⁴)... M``: 2k - 1 products."""
    Y, square = torch.baddbmm(M, X, M, alpha=-1), X
    while degree > 1:
        square = square @ square
        Y = torch.baddbmm(Y, square, Y)
        degree //= 2
    return Y


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
