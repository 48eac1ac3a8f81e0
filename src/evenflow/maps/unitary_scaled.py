"""Unitary matrices by Cayley's transform, scaled by phases that are trained too."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow.maps.map import COMPLEX, Map
from evenflow.maps.matrix_operations import need_orthogonal
from evenflow.maps.unitary import Unitary


class ScaledUnitary(Map):
    """``W = (I + A)⁻¹ (I - A) D`` of a skew-Hermitian A and ``D = diag(exp(iθ))``: every unitary matrix.

    `Cayley` with real numbers has fixed signs in the place of D, which the user chooses; here D is trained.

    Shapes:
        raw: A ``(..., n, n)``, real, as in `Unitary`; θ ``(..., n)``; matrix ``(..., n, n)``, complex. n² + n numbers;
        the cost of `Unitary` by ``"cayley"``.

    Args:
        rows, columns, precision: see `Map`.

    Starting value: A as in `Unitary` by ``"cayley"``, θ from U(0, 2π).

    >>> map = ScaledUnitary(64)
    >>> bool(residual(map(*map.start())) < 1e-5)
    True

    Reference: Maduranga, Helfrich and Ye 2019 (scuRNN).
    """

    orthogonal = True

    def __init__(self, rows: int, columns: int | None = None, *, precision: str | None = None) -> None:
        super().__init__(rows, columns, precision=precision)
        self.core = Unitary(rows, columns, method="cayley")

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.rows, self.rows), (self.rows,)

    def evaluate(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        C, _ = self.core.evaluate(raw[0])
        D = torch.polar(torch.ones_like(raw[1]), raw[1]).to(C.dtype)
        return C * D.unsqueeze(-2), (C, D)

    def vjp(self, G: Tensor, W: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        C, D = saved
        (by_A,) = self.core.vjp(G * D.conj().unsqueeze(-2), C)
        return by_A, (G * W.conj()).imag.sum(-2)

    def plain(self, *raw: Tensor) -> Tensor:
        C = self.core.plain(raw[0])
        return C * torch.complex(raw[1].cos(), raw[1].sin()).unsqueeze(-2)

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        full = matrix.to(COMPLEX[torch.float64])
        need_orthogonal(full, "ScaledUnitary", matrix.dtype)
        pairs = [self._numbers(one) for one in full.reshape(-1, self.rows, self.rows)]
        A, theta = (torch.stack(each) for each in zip(*pairs, strict=True))
        return A.reshape(matrix.shape), theta.reshape(matrix.shape[:-1])

    def _numbers(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of one matrix ``(n, n)``: one angle, which turns the widest gap between eigenvalues to -1."""
        angles = torch.linalg.eigvals(W).angle().sort().values
        gaps = torch.cat([angles[1:], angles[:1] + 2 * math.pi]) - angles
        at = gaps.argmax()
        theta = angles[at] + gaps[at] / 2 - math.pi
        (A,) = self.core.inverse(W * torch.polar(torch.ones_like(theta), -theta))
        return A, theta.expand(self.rows)

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        where = None if generator is None else generator.device
        (A,) = self.core.start(generator)
        return A, 2 * math.pi * torch.rand(self.rows, generator=generator, device=where).cpu()
