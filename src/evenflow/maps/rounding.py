"""Round an orthogonal matrix from float64 to float32 and keep its columns closer to orthonormal than the nearest."""

from __future__ import annotations

import torch
from torch import Tensor

# Entries are rounded from the largest down. Below the last level an error is 2^-28 at most; finer levels gain little.
LEVELS = (1 / 2, 1 / 8)
ITERATIONS = 4  # of conjugate gradients at each level; the next level reduces what is left
DAMPING = 0.03  # share of the operator's diagonal that is added to it: with few free entries it is nearly singular
FREE = 1e-4  # share of two columns' squares: if fewer entries are free, the product of the columns stays as it is
# The largest change of an entry. Rounding alone changes it by 3e-8; an entry that is a hundredth of its column may
# change by a hundred times that to correct the column. With larger changes it would be another matrix.
MOVED = 4e-6


def rounded(W: Tensor) -> Tensor:
    """A float32 matrix close to the orthogonal W, with a smaller ``|WᵀW - I|`` than the nearest float32 one has.

    An entry near one is rounded by up to 2⁻²⁵, one below 1/8 by at most 2⁻²⁸, so the small entries can correct the
    errors of the large ones. Entries of at least 1/2 are rounded first, then those of at least 1/8. After each rounding
    the remaining nonzero entries change by the least Δ that makes the columns orthonormal again: ``Δ = F ∘ WΛ`` with F
    one where an entry is free and Λ symmetric, from ``WᵀΔ + ΔᵀW = I - WᵀW``.

    Shapes:
        W ``(..., n, n)`` in float64; the same in float32. Leading dimensions are independent matrices. 25 products
        of n x n matrices, 20 of them in float32.

    If there is no better matrix, as for 2 x 2 blocks with too few free entries, the result is the nearest one. A
    zero stays zero. No number is read on the host, so that the function can be captured as a CUDA graph.

    >>> W = torch.linalg.qr(torch.randn(64, 64, dtype=torch.float64))[0]
    >>> bool(residual(rounded(W).double()) < residual(W.float().double()))
    True
    """
    eye = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    size, careful, best = W.abs(), W, W.float()
    error = _off(best, eye)
    for level in LEVELS:
        fixed = (size >= level) | (size == 0)
        careful = torch.where(fixed, careful.float().to(W.dtype), careful)
        careful = careful + _least_change(careful, eye - careful.mT @ careful, ~fixed)
        candidate = careful.float()
        off, moved = _off(candidate, eye), (candidate - W).abs().amax((-2, -1), keepdim=True)
        # False if the candidate is nan.
        better = (off < error) & (moved <= MOVED)
        best, error = torch.where(better, candidate, best), torch.where(better, off, error)
    return best


def _off(W: Tensor, eye: Tensor) -> Tensor:
    """``|WᵀW - I|²``, summed over all entries to ``(..., 1, 1)`` in the dtype of `eye`."""
    full = W.to(eye.dtype)
    return (full.mT @ full - eye).square().sum((-2, -1), keepdim=True)


def _least_change(W: Tensor, wanted: Tensor, free: Tensor) -> Tensor:
    """Return the least Δ, zero where not `free`, with ``WᵀΔ + ΔᵀW = wanted``, by damped conjugate gradients.

    In float32, or TF32 where that is allowed: Δ is so small that its first digits are enough.
    """
    U, F, left = W.float(), free.float(), wanted.float()
    diagonal = U.square().mT @ F
    diagonal = diagonal + diagonal.mT
    scale = torch.where(diagonal > FREE, 1 / diagonal, 0)
    damping = DAMPING * diagonal
    multipliers = torch.zeros_like(left)
    step = scale * left
    length = (left * step).sum((-2, -1), keepdim=True)
    for _ in range(ITERATIONS):
        image = U.mT @ (F * (U @ step))
        image = image + image.mT + damping * step
        along = (step * image).sum((-2, -1), keepdim=True)
        share = torch.where(along > 0, length / along, 0)
        multipliers, left = multipliers + share * step, left - share * image
        residual = scale * left
        before, length = length, (left * residual).sum((-2, -1), keepdim=True)
        step = residual + torch.where(before > 0, length / before, 0) * step
    return (F * (U @ multipliers)).to(W.dtype)
