"""The arithmetic of matrices with orthonormal columns: tangents, Cayley's step, correction of rounding errors."""

from __future__ import annotations

import torch
from torch import Tensor

# The largest degree of a series. On a CPU four products cost more than a linear solve, on a GPU far less.
LONGEST = {"cpu": 3}
LONGEST_ELSEWHERE = 31
DEGREES = (1, 2, 3, 7, 15, 31)
# The number of rows from which a CPU eliminates S in blocks, at the cost of two to three products, and not by an LU
# factorisation, which costs four. On a GPU long series need fewer launches.
BLOCKS = {"cpu": 256}
# The largest |S| for blocks: without pivots the error grows as |S|², and up to here it is not larger than with LU.
BLOCKS_UP_TO = 4.0
# The number of rows up to which a block is inverted directly.
LEAF = 64


def cayley_step(M: Tensor, Z: Tensor, most: float | None = None) -> Tensor:
    """Return ``(I + X)⁻¹ (I - X) M`` with the skew ``X = Z Mᴴ - M Zᴴ``, which keeps columns orthonormal.

    With Z = η/2 G this is the step of geodesic descent. X is n x n but of rank 2p at most, so a narrow M never forms
    it: with U = [Z, M] and V = [M, -Z], X = U Vᴴ and the step is ``M - 2 U (I + Vᴴ U)⁻¹ Vᴴ M``, in O(n p²). At a square
    M, X = M S Mᴴ with ``S = Mᴴ Z - Zᴴ M``, and the step is ``M (I + S)⁻¹ (I - S)``.

    Shapes:
        M, Z, result: ``(B, n, p)``, p <= n.

    Args:
        most: see `turned`; twice an upper bound of the norm of Z.
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
    """Return the Cayley step at M that begins along -2V for a tangent V: `cayley_step` with ``Z = V - M Mᴴ V / 2``.

    For a narrow M from a p x p system: with ``N = V - M Mᴴ V``, the part of V orthogonal to the columns of M, and
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
    """Return True if M has so few columns that a p x p or 2p x 2p system is cheaper than an n x n one."""
    return 2 * M.shape[-1] < M.shape[-2]


def skew(M: Tensor, Z: Tensor) -> Tensor:
    """Return ``Mᴴ Z - Zᴴ M``, ``(B, p, p)``."""
    P = torch.bmm(M.mH, Z)
    return P - P.mH


def turned(M: Tensor, S: Tensor, most: float | None = None) -> Tensor:
    """Return ``M (I + S)⁻¹ (I - S) = 2 M (I + S)⁻¹ - M`` for a skew S, which may be overwritten, and orthonormal rows.

    This takes a short series if S is small, else one elimination. The series ``(I + S)⁻¹ = Σ (-S)ʲ`` cut after degree d
    has the error ``M (I + S)⁻¹ Sᵈ⁺¹``, no entry of which is above c |S|ᵈ. Here c is the length of the longest row of S,
    and |S| is at most the largest sum of absolute values of a row, and at most the Frobenius norm.

    Args:
        most: an upper bound of the Frobenius norm of S, if one is known. In a capture, which cannot read the norm, it
            allows a shorter series; above the bound the result is nan.
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
    if in_capture(S):  # its numbers cannot be read: the longest series, and nan if that is too short
        close = 2 * bounds[0] * bounds[1:].amin() ** LONGEST_ELSEWHERE <= allowed
        return torch.where(close, _series(M, S, LONGEST_ELSEWHERE), torch.nan)
    longest, *bound = bounds.tolist()  # the only synchronisation with the device
    blocks = min(bound) <= BLOCKS_UP_TO and kind in BLOCKS and S.shape[-1] >= BLOCKS[kind]
    top = 2 if blocks else LONGEST.get(kind, LONGEST_ELSEWHERE)
    short = next((d for d in DEGREES if d <= top and 2 * longest * min(bound) ** d <= allowed), None)
    if short is not None:
        return _series(M, S, short)
    S.diagonal(dim1=-2, dim2=-1).add_(1)
    if blocks:
        return _eliminated(M, S)
    factors, pivots, _ = torch.linalg.lu_factor_ex(S)
    return torch.linalg.lu_solve(factors, pivots, M, left=False).mul_(2).sub_(M)


def in_capture(value: Tensor) -> bool:
    """Return True while work on this tensor is captured as a CUDA graph, so that the host cannot read its numbers."""
    return value.is_cuda and torch.cuda.is_current_stream_capturing()


def _series(M: Tensor, S: Tensor, degree: int) -> Tensor:
    """Return ``2 M Σ (-S)ʲ - M`` up to a degree of 1, 2 or 2ᵏ - 1."""
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
    """Return ``2 M X⁻¹ - M`` for a square X with a positive symmetric part, which is overwritten.

    In halves, X = [[A, B], [E, D]] and M = [M₁, M₂]: with ``C = D - E A⁻¹ B``, ``Y₂ = 2 (M₂ - M₁ A⁻¹ B) C⁻¹`` and
    ``Y₁ = (2 M₁ - Y₂ E) A⁻¹`` the result is [Y₁, Y₂] - M. The symmetric part of C is positive too, so no pivots are
    needed, and nearly all of the work is products, which a CPU does three times as fast as triangular solves.
    """
    A, B, E, D = _quarters(X)
    h = A.shape[-1]
    left, right = M[..., :h], M[..., h:]
    first = _inverse(A)
    U = torch.bmm(first, B)
    second = _inverse(D.baddbmm_(E, U, alpha=-1))
    for inverse in (first, second):  # without the identity the sums below are small, and so are their rounding errors
        inverse.diagonal(dim1=-2, dim2=-1).sub_(1)
    result = torch.empty_like(M, memory_format=torch.contiguous_format)  # also holds intermediate results
    T = torch.baddbmm(right, left, U, beta=2, alpha=-2, out=result[..., h:])
    Y = torch.baddbmm(T, T, second)
    T = torch.baddbmm(left, Y, E, beta=2, alpha=-1)
    torch.baddbmm(T, T, first, out=result[..., :h])
    torch.sub(Y, right, out=result[..., h:])
    result[..., :h].sub_(left)
    return result


def _inverse(X: Tensor) -> Tensor:
    """Return ``X⁻¹`` for an X with a positive symmetric part, in halves down to `LEAF` rows."""
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
    """Replace V in place by `share` times the nearest tangent at M, ``V - M (Mᴴ V + Vᴴ M)/2``."""
    inside = torch.bmm(M.mH, V)
    return V.baddbmm_(M, inside + inside.mH, beta=share, alpha=-share / 2)


def canonical_gradient(M: Tensor, G: Tensor) -> Tensor:
    """Return ``A M = G - M Gᴴ M`` with ``A = G Mᴴ - M Gᴴ``, the tangent of the gradient G = ∂L/∂M."""
    return torch.baddbmm(G, M, torch.bmm(G.mH, M), alpha=-1)


def polish(M: Tensor) -> Tensor:
    """Return one Newton-Schulz step, ``M - M (Mᴴ M - I)/2``: an error of ε in ``Mᴴ M`` becomes ε²."""
    gram = torch.bmm(M.mH, M)
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return torch.baddbmm(M, M, gram, alpha=-0.5)
