"""The logarithm of a rotation or a unitary matrix, for the inverse of the exponential maps."""

from __future__ import annotations

import torch
from torch import Tensor

HALVINGS = 3  # angles up to π become angles up to π/8, where the series below gains 1.4 digits a term
TERMS = 12
# cos of half the angle below which the angle counts as π: rounding errors are 1e-8.
STRAIGHT = 1e-8


def unitary_log(matrix: Tensor) -> Tensor:
    """Return the skew-Hermitian B with ``exp(B)`` equal to the matrix and angles within [-π, π].

    All angles are halved three times; then ``log R = 2 artanh((R - I)(R + I)⁻¹)``, whose series is short.

    Shapes:
        ``(n, n)`` in and out: a complex128 unitary matrix, or a float64 orthogonal one of determinant +1.
    """
    I = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    root = matrix
    for _ in range(HALVINGS):
        root = _half_angle(root, I)
    A = torch.linalg.solve(root + I, root - I)
    A = (A - A.mH) / 2
    square, total = A @ A, torch.zeros_like(A)
    for k in reversed(range(TERMS)):
        total = I / (2 * k + 1) + square @ total
    B = 2 ** (HALVINGS + 1) * (A @ total)
    return (B - B.mH) / 2


def _half_angle(matrix: Tensor, I: Tensor) -> Tensor:
    """Return the root with half of each angle: the unitary factor of ``I + R``, with singular values 2cos(θ/2)."""
    P, length, Qh = torch.linalg.svd(matrix + I)
    straight = int((length < 2 * STRAIGHT).sum())
    if not matrix.is_complex():
        # In planes rotated by π these are zero, and any rotation by π/2 is a root. The number of such directions is
        # even, since the determinant is +1.
        straight += straight % 2
    regular = len(length) - straight
    root = P[:, :regular] @ Qh[:regular]
    if straight:
        Q = Qh[regular:].mH
        if matrix.is_complex():
            return root + 1j * Q @ Q.mH
        x, y = Q[:, ::2], Q[:, 1::2]
        root = root + x @ y.mT - y @ x.mT
    return root
