"""The base class of maps of skew-symmetric matrices: packed numbers, starting values, checks of the inverse."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow import init as starts
from evenflow.checks import one_of
from evenflow.maps.map import Map
from evenflow.maps.matrix_operations import need_orthogonal

STARTS = ("henaff", "cayley", "haar", "identity")


class Skew(Map):
    """A map of ``B = -Bᵀ``. The free numbers are the entries above the diagonal of B, row by row.

    Shapes:
        raw ``(..., n(n-1)/2)``, matrix ``(..., n, n)``.

    Args:
        rows, columns, precision: see `Map`.
        init: starting value. ``"henaff"``: 2 x 2 rotations with angles U(-π, π). ``"cayley"``: 2 x 2 blocks of B with
            entries ±tan(u/2), u from U(0, π/2). ``"haar"``: a uniform draw from all rotations. ``"identity"``: zeros.

    Reference: Henaff et al. 2016; Lezcano-Casado and Martínez-Rubio 2019.
    """

    orthogonal = True

    def __init__(
        self, rows: int, columns: int | None = None, *, init: str = "henaff", precision: str | None = None
    ) -> None:
        super().__init__(rows, columns, precision=precision)
        self.need_square()
        one_of("init", init, STARTS)
        self.init = init

    def constants(self, device: torch.device) -> dict[str, Tensor]:
        i, j = torch.triu_indices(self.rows, self.rows, 1, device=device)
        return {"upper": i * self.rows + j}

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.rows * (self.rows - 1) // 2,),)

    def upper(self, numbers: Tensor) -> Tensor:
        """Return the indices of the entries above the diagonal in the flat matrix, on the device of `numbers`."""
        return self.constant("upper", numbers.device)

    def skew(self, raw: Tensor) -> Tensor:
        """Return the skew-symmetric matrix of the free numbers."""
        n = self.rows
        half = raw.new_zeros(*raw.shape[:-1], n * n).index_copy_(-1, self.upper(raw), raw).unflatten(-1, (n, n))
        return half - half.mT

    def pack(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the free numbers from the gradient of all entries of B."""
        return (gradient - gradient.mT).flatten(-2).index_select(-1, self.upper(gradient))

    def logarithm(self, matrix: Tensor) -> Tensor:
        """Return the B of one orthogonal float64 matrix ``(n, n)``, or raise a ValueError."""
        raise NotImplementedError

    def signed(self, matrix: Tensor) -> Tensor:
        """Return the matrix without the signs of the map, for a map that has signs."""
        return matrix

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        full = matrix.double()
        need_orthogonal(full, type(self).__name__, matrix.dtype)
        B = torch.stack([self.logarithm(one) for one in self.signed(full).reshape(-1, self.rows, self.rows)])
        return (B.flatten(1)[:, self.upper(B)].reshape(*matrix.shape[:-2], -1),)

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        n = self.rows
        if self.init == "haar":
            rotation = starts.orthogonal(n, generator=generator, dtype=torch.float64, device="cpu")
            rotation[0] *= torch.linalg.det(rotation).sign()
            B = self.logarithm(rotation)
            return (B.flatten()[self.upper(B)].float(),)
        B = torch.zeros(n, n, device="cpu")
        if self.init != "identity":
            where = None if generator is None else generator.device
            draw = torch.rand(n // 2, generator=generator, device=where).cpu()
            even = 2 * torch.arange(n // 2)
            henaff = self.init == "henaff"
            B[even, even + 1] = self.block((2 * draw - 1) * math.pi) if henaff else (draw * math.pi / 4).tan()
        return (B.flatten()[self.upper(B)],)

    def block(self, angle: Tensor) -> Tensor:
        """Return the entry of B for which a 2 x 2 block is a rotation by `angle`."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{self.rows}, init={self.init!r}"
