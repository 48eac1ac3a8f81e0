"""The arithmetic of matrices with orthonormal columns: tangents, Cayley's step, and the way back from rounding."""

from __future__ import annotations

import torch
from torch import Tensor

# The longest series worth its products: on a CPU four products cost more than a solution, on a GPU far less.
LONGEST = {"cpu": 3}
LONGEST_ELSEWHERE = 31
DEGREES = (1, 2, 3, 7, 15, 31)
# The rows from which an S on a CPU is eliminated in blocks, at the cost of two to three products, rather than by an LU
# factorisation at four. On a GPU long series do with fewer launches.
BLOCKS = {"cpu": 256}
# The largest |S| for blocks: without pivots the error grows as the square of |S|, and up to here it is that of LU.
BLOCKS_UP_TO = 4.0
# The rows up to which a block is inverted at once.
LEAF = 64


def cayley_step(M: Tensor, Z: Tensor, most: float | None = None) -> Tensor:
    """``(I + X)⁻¹ (I - X) M`` with the skew ``X = Z Mᴴ - M Zᴴ``: columns that are orthonormal stay so.

    With Z = η/2 G this is the step of geodesic descent. X is n x n but of rank 2p at most, so a narrow M never forms
    it: with U = [Z, M] and V = [M, -Z], X = U Vᴴ and the step is ``M - 2 U (I + Vᴴ U)⁻¹ Vᴴ M``, in O(n p²). At a square
    M, X = M S Mᴴ with ``S = Mᴴ Z - Zᴴ M``, and the step is ``M (I + S)⁻¹ (I - S)``.

    Shapes:
        M, Z, result: ``(B, n, p)``, p <= n.

    Args:
        most: see `turned`; twice what no Z is longer than will do.
    """
    n, p = M.shape[-2:]
    if n == p:
        return turned(M, skew(M, Z), most)
    if narrow(M):
        U, V = torch.cat([Z, M], -1), torch.cat([M, -Z], -1)
        inside = torch.bmm(V.mH, U)
        right = inside[..., p:].clone()  # Vᴴ M
        inside.diagonal(dim1=-2, dim2=-1).add_(1)
        return torch.baddbmm(M, U, torch.linalg.solve_ex(inside, right)[0], alpha=-2)
    P = torch.bmm(M, Z.mH)
    return turned(M.mH, P - P.mH, most).mH  # the transpose of the step, and of X


def tangent_step(M: Tensor, V: Tensor) -> Tensor:
    """The Cayley step at M that begins along -2V for a tangent V: `cayley_step` with ``Z = V - M Mᴴ V / 2``.

    For a narrow M from a system of p x p numbers: with ``N = V - M Mᴴ V``, the part of V across the columns of M, and
    ``R = Mᴴ V + Nᴴ N``, the step is ``2 (M - N) (I + R)⁻¹ - M = M - 2N - 2 (M - N) (I + R)⁻¹ R``.

    Shapes:
        as in `cayley_step`.
    """
    W = torch.bmm(M.mH, V)  # skew but for rounding
    if not narrow(M):
        return cayley_step(M, torch.baddbmm(V, M, W, alpha=-0.5))
    N = torch.baddbmm(V, M, W, alpha=-1)
    R = torch.baddbmm(W - W.mH, N.mH, N, beta=0.5)
    right = R.clone()
    R.diagonal(dim1=-2, dim2=-1).add_(1)
    D = M - N
    return torch.baddbmm(D - N, D, torch.linalg.solve_ex(R, right)[0], alpha=-2)


def narrow(M: Tensor) -> bool:
    """Whether M has so few columns that its step is cheaper by a system of their number than of its rows'."""
    return 2 * M.shape[-1] < M.shape[-2]


def skew(M: Tensor, Z: Tensor) -> Tensor:
    """``Mᴴ Z - Zᴴ M``, ``(B, p, p)``."""
    P = torch.bmm(M.mH, Z)
    return P - P.mH


def turned(M: Tensor, S: Tensor, most: float | None = None) -> Tensor:
    """``M (I + S)⁻¹ (I - S) = 2 M (I + S)⁻¹ - M`` for a skew S, which may be overwritten, and orthonormal rows of M.

    A short series where S is small, else one elimination. The series ``(I + S)⁻¹ = Σ (-S)ʲ`` cut after degree d leaves
    ``M (I + S)⁻¹ Sᵈ⁺¹``, no entry of which is above c |S|ᵈ: c is the length of the longest row of S, and |S| is at most
    the largest sum of a row's absolute values and the root of the sum of all squares.

    Args:
        most: what the root of the sum of all squares will not be above, where that is known in advance: a recording,
            which cannot look, then takes a series as short as that allows. Above it, the result is nan.
    """
    kind = S.device.type
    allowed = torch.finfo(S.dtype).eps / 4
    if in_capture(S) and most is not None and most < 1 and 2 * most ** (LONGEST_ELSEWHERE + 1) <= allowed:
        degree = next(d for d in DEGREES if 2 * most ** (d + 1) <= allowed)
        close = torch.linalg.vector_norm(S, dim=(-2, -1)).amax() <= most
        return torch.where(close, _series(M, S, degree), torch.nan)
    rows = torch.linalg.vector_norm(S, dim=-1)
    sums = torch.linalg.vector_norm(S, 1, dim=-1)
    bounds = torch.stack([rows.amax(), sums.amax(), torch.linalg.vector_norm(rows, dim=-1).amax()])
    if in_capture(S):  # nobody can look: the longest series, and not a number where that is too short
        close = 2 * bounds[0] * bounds[1:].amin() ** LONGEST_ELSEWHERE <= allowed
        return torch.where(close, _series(M, S, LONGEST_ELSEWHERE), torch.nan)
    longest, *bound = bounds.tolist()  # the one time that numbers are read from the device
    blocks = min(bound) <= BLOCKS_UP_TO and kind in BLOCKS and S.shape[-1] >= BLOCKS[kind]
    top = 2 if blocks else LONGEST.get(kind, LONGEST_ELSEWHERE)
    found = next((d for d in DEGREES if d <= top and 2 * longest * min(bound) ** d <= allowed), None)
    if found is not None:
        return _series(M, S, found)
    S.diagonal(dim1=-2, dim2=-1).add_(1)
    if blocks:
        return _eliminated(M, S)
    factors, pivots, _ = torch.linalg.lu_factor_ex(S)
    return torch.linalg.lu_solve(factors, pivots, M, left=False).mul_(2).sub_(M)


def in_capture(value: Tensor) -> bool:
    """Return True while work on this tensor is captured as a CUDA graph, so that the host cannot read its numbers."""
    return value.is_cuda and torch.cuda.is_current_stream_capturing()


def _series(M: Tensor, S: Tensor, degree: int) -> Tensor:
    """``2 M Σ (-S)ʲ - M`` up to a degree of 1, 2 or 2ᵏ - 1."""
    Y = M
    if degree <= 3:
        for _ in range(degree - 1):
            Y = torch.baddbmm(M, Y, S, alpha=-1)
        return torch.baddbmm(M, Y, S, alpha=-2)
    # Up to degree 2ᵏ - 1 as (I - S)(I + S²)(I + S⁴)...: 2k - 1 products.
    Y = torch.baddbmm(M, M, S, alpha=-1)
    while degree > 1:
        S = torch.bmm(S, S)
        Y = torch.baddbmm(Y, Y, S)
        degree //= 2
    return Y.mul_(2).sub_(M)


def _eliminated(M: Tensor, X: Tensor) -> Tensor:
    """``2 M X⁻¹ - M`` for a square X with a positive symmetric part, which is overwritten.

    In halves, X = [[A, B], [E, D]] and M = [M₁, M₂]: with ``C = D - E A⁻¹ B``, ``Y₂ = 2 (M₂ - M₁ A⁻¹ B) C⁻¹`` and
    ``Y₁ = (2 M₁ - Y₂ E) A⁻¹`` the result is [Y₁, Y₂] - M. The symmetric part of C is positive too, so no pivots are
    needed, and nearly all of it is products, which a CPU does three times as fast as triangular solutions.
    """
    A, B, E, D = _quarters(X)
    h = A.shape[-1]
    left, right = M[..., :h], M[..., h:]
    first = _inverse(A)
    U = torch.bmm(first, B)
    second = _inverse(D.baddbmm_(E, U, alpha=-1))
    for inverse in (first, second):  # without their ones the sums below stay small, and so does their rounding
        inverse.diagonal(dim1=-2, dim2=-1).sub_(1)
    result = torch.empty_like(M, memory_format=torch.contiguous_format)  # where half of the numbers on the way fit too
    T = torch.baddbmm(right, left, U, beta=2, alpha=-2, out=result[..., h:])
    Y = torch.baddbmm(T, T, second)
    T = torch.baddbmm(left, Y, E, beta=2, alpha=-1)
    torch.baddbmm(T, T, first, out=result[..., :h])
    torch.sub(Y, right, out=result[..., h:])
    result[..., :h].sub_(left)
    return result


def _inverse(X: Tensor) -> Tensor:
    """``X⁻¹`` for an X with a positive symmetric part, in halves down to `LEAF` rows."""
    n = X.shape[-1]
    if n <= LEAF:
        return torch.linalg.solve_ex(X, torch.eye(n, dtype=X.dtype, device=X.device).expand_as(X), left=False)[0]
    A, B, E, D = _quarters(X)
    first = _inverse(A)
    U, W = torch.bmm(first, B), torch.bmm(E, first)
    second = _inverse(torch.baddbmm(D, E, U, alpha=-1))
    P = torch.bmm(U, second)
    upper = torch.cat([torch.baddbmm(first, P, W), P.neg_()], -1)
    return torch.cat([upper, torch.cat([torch.bmm(second, W).neg_(), second], -1)], -2)


def _quarters(X: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    h = (X.shape[-1] + 1) // 2
    return X[..., :h, :h], X[..., :h, h:], X[..., h:, :h], X[..., h:, h:]


def carry(M: Tensor, V: Tensor, share: float) -> Tensor:
    """V, in its place, as `share` of the nearest tangent at M, ``V - M (Mᴴ V + Vᴴ M)/2``."""
    inside = torch.bmm(M.mH, V)
    return V.baddbmm_(M, inside + inside.mH, beta=share, alpha=-share / 2)


def canonical_gradient(M: Tensor, G: Tensor) -> Tensor:
    """``A M = G - M Gᴴ M`` with ``A = G Mᴴ - M Gᴴ``: the tangent along which the step begins; G is ∂L/∂M."""
    return torch.baddbmm(G, M, torch.bmm(G.mH, M), alpha=-1)


def polish(M: Tensor) -> Tensor:
    """One step of Newton and Schulz towards orthonormal columns, ``M - M (Mᴴ M - I)/2``: what was ε off is ε² off."""
    gram = torch.bmm(M.mH, M)
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return torch.baddbmm(M, M, gram, alpha=-0.5)
