"""Matrices by their real Schur form: rotations of planes, and what is not normal about them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow.maps.cayley import Cayley
from evenflow.maps.map import Map


class Schur(Map):
    """``W = P (Θ + T) Pᵀ`` with P orthogonal, Θ of 2 x 2 blocks ``g R(θ)``, and T above the blocks.

    With T = 0 and g = 1 the matrix is orthogonal; T adds the feed-forward interactions that a normal matrix lacks, and
    leaves the eigenvalues ``g exp(±iθ)`` as they are.

    Shapes:
        raw: b ``(..., n(n-1)/2)``, the numbers of P as in `Cayley`; θ ``(..., n/2)``; g ``(..., n/2)``; t
        ``(..., n(n-2)/2)``, the blocks of T row by row; matrix ``(..., n, n)`` for an even n.

    Starting value: P as in `Cayley`, θ from U(-π, π), g = 1 and T = 0.

    >>> map = make("schur", 6)
    >>> bool(residual(map(*map.start())) < 1e-5)
    True

    Note on P: the authors take the exponential of a skew matrix; Cayley's transform makes almost all of the same P.
    Note on assigning: a matrix cannot be assigned, because torch has no Schur decomposition.

    Reference: Kerg et al. 2019 (nnRNN).
    """

    def __init__(self, rows: int, columns: int | None = None, *, precision: str | None = None) -> None:
        super().__init__(rows, columns, precision=precision)
        self.need_square()
        if rows % 2:
            raise ValueError(f"Schur needs an even number of rows, got {rows}")
        self.basis = Cayley(rows)

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        n = self.rows
        return *self.basis.raw_shapes, (n // 2,), (n // 2,), (n * (n - 2) // 2,)

    def _quasitriangular(self, theta: Tensor, g: Tensor, t: Tensor) -> Tensor:
        """Return Θ + T."""
        m, lead = self.rows // 2, theta.shape[:-1]
        cos, sin = g * theta.cos(), g * theta.sin()
        rotations = torch.stack([cos, -sin, sin, cos], -1).unflatten(-1, (2, 2))
        diagonal, above = self._blocks(t.device)
        S = t.new_zeros(*lead, m * m, 2, 2)
        S = S.index_copy(-3, diagonal, rotations).index_copy(-3, above, t.unflatten(-1, (-1, 2, 2)))
        return S.unflatten(-3, (m, m)).transpose(-3, -2).flatten(-4, -3).flatten(-2)

    def _blocks(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the places, among m x m blocks of 2 x 2 numbers, of the blocks on the diagonal and above it."""
        m = self.rows // 2
        i, j = torch.triu_indices(m, m, 1, device=device)
        return torch.arange(m, device=device) * (m + 1), i * m + j

    def plain(self, *raw: Tensor) -> Tensor:
        P = self.basis.plain(raw[0])
        return P @ self._quasitriangular(*raw[1:]) @ P.mT

    def evaluate(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        (P, _), S = self.basis.evaluate(raw[0]), self._quasitriangular(*raw[1:])
        return P @ S @ P.mT, (P, S, *raw[1:3])

    def vjp(self, G: Tensor, W: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        P, S, theta, g = saved
        diagonal, above = self._blocks(G.device)
        m = self.rows // 2
        dS = (P.mT @ G @ P).unflatten(-1, (m, 2)).unflatten(-3, (m, 2)).transpose(-3, -2).flatten(-4, -3)
        D = dS.index_select(-3, diagonal)
        along, across = D[..., 0, 0] + D[..., 1, 1], D[..., 1, 0] - D[..., 0, 1]
        cos, sin = theta.cos(), theta.sin()
        return (
            *self.basis.vjp(G @ P @ S.mT + G.mT @ P @ S, P),
            g * (cos * across - sin * along),
            cos * along + sin * across,
            dS.index_select(-3, above).flatten(-3),
        )

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        raise ValueError("Schur cannot be given a matrix: torch has no Schur decomposition; set its numbers")

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        n, device = self.rows, "cpu" if generator is None else generator.device
        angles = (2 * torch.rand(n // 2, generator=generator, device=device).cpu() - 1) * math.pi
        return *self.basis.start(generator), angles, torch.ones(n // 2), torch.zeros(n * (n - 2) // 2)
