"""Operations on matrices that several maps share: products with a sum in one call, and how orthogonal a matrix is."""

from __future__ import annotations

import torch
from torch import Tensor


def addmm(c: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta c + alpha a b`` in one operation, with or without leading dimensions."""
    if c.dim() == 2:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    lead, shape = c.shape[:-2], c.shape
    flat = (x.expand(*lead, *x.shape[-2:]).flatten(0, -3) for x in (c, a, b))
    return torch.baddbmm(*flat, beta=beta, alpha=alpha).reshape(shape)


def minus_mm(a: Tensor, b: Tensor) -> Tensor:
    """``-ab`` in one operation."""
    if a.dim() == 2:
        return torch.addmm(a.new_empty(1, 1), a, b, beta=0, alpha=-1)
    return -(a @ b)


def tighten(W: Tensor) -> Tensor:
    """One step of Newton and Schulz, ``W(3I - WᴴW)/2``: a residual of ε becomes ε² plus one rounding."""
    return addmm(W, W, W.mH @ W, 1.5, -0.5)


def residual(matrix: Tensor) -> Tensor:
    """Return the largest entry of ``|WᵀW - I|`` (``|WWᴴ - I|`` for a wide W): 0 for an orthogonal or unitary W.

    >>> residual(torch.eye(3) * 1.1)
    tensor(0.2100)
    """
    tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mH
    gram = tall.mH @ tall
    return (gram - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)).abs().amax((-2, -1))


def need_orthogonal(matrix: Tensor, name: str, dtype: torch.dtype) -> None:
    """Raise a ValueError if a float64 `matrix` is further from orthogonal than rounding to `dtype` explains."""
    allowed = {2: 1e-2, 8: 1e-8}.get(dtype.to_real().itemsize, 1e-4)
    off = residual(matrix).max().item()
    if not off <= allowed:
        kind = "unitary" if matrix.is_complex() else "orthogonal"
        raise ValueError(f"{name} makes {kind} matrices, got one with |WᵀW - I| up to {off:.2g}")
