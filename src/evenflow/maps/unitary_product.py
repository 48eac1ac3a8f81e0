"""Unitary matrices as a product of diagonals, reflections and Fourier transforms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow.maps.map import COMPLEX, Map


class UnitaryProduct(Map):
    """``W = D_3 R_2 F⁻¹ D_2 Π R_1 F D_1``: phases D, complex reflections R, Fourier's F and a fixed permutation Π.

    Shapes:
        raw: angles ``(..., 3, n)`` of the D, and ``(..., 4, n)``: real and imaginary parts of the vector of R_1, then
        of R_2; matrix ``(..., n, n)``, complex. 7n numbers; `product` costs O(n log n) for each row, the matrix n times
        that.

    Args:
        seed: of the permutation, which is saved in the state_dict.
        rows, columns, precision: see `Map`.

    Starting value: angles from U(-π, π), vectors from U(-1, 1).

    >>> map = UnitaryProduct(64)
    >>> bool(residual(map(*map.start())) < 1e-5)
    True

    Note, no inverse: 7n numbers cannot make every matrix, so a matrix cannot be assigned.

    Reference: Arjovsky, Shah and Bengio 2016.
    """

    orthogonal = True
    permutation: Tensor

    def __init__(self, rows: int, columns: int | None = None, *, seed: int = 0, precision: str | None = None) -> None:
        super().__init__(rows, columns, precision=precision)
        self.need_square()
        self.seed = seed
        self.register_buffer("permutation", self._permutation().to(torch.get_default_device()))

    def _permutation(self) -> Tensor:
        return torch.randperm(self.rows, generator=torch.Generator().manual_seed(self.seed), device="cpu")

    def reset_buffers(self) -> None:
        self.permutation.copy_(self._permutation())

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return (3, self.rows), (4, self.rows)

    def product(self, h: Tensor, *raw: Tensor) -> Tensor:
        return self._applied(h, *self.full(*raw))

    def _applied(self, h: Tensor, angles: Tensor, parts: Tensor) -> Tensor:
        # The numbers get one more dimension, for the rows of h.
        extra = 1 if angles.dim() > 2 else 0
        D1, D2, D3 = (_rows(x, extra) for x in torch.polar(torch.ones_like(angles), angles).unbind(-2))
        v1, v2 = (_rows(torch.complex(parts[..., i, :], parts[..., i + 1, :]), extra) for i in (0, 2))
        h = _reflect(torch.fft.fft(h * D1, norm="ortho"), v1)
        h = h.index_select(-1, self.permutation) * D2
        return _reflect(torch.fft.ifft(h, norm="ortho"), v2) * D3

    def matrix(self, *raw: Tensor) -> Tensor:
        # In float64: rounding in the transforms would cost a digit.
        angles, parts = (r.double() for r in raw)
        eye = torch.eye(self.rows, dtype=torch.complex128, device=angles.device)
        return self._applied(eye, angles, parts).mT.to(COMPLEX[raw[0].dtype])

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        raise ValueError(
            f"UnitaryProduct cannot be given a matrix: {self.parameter_count} numbers do not make every one; "
            f"Unitary has all of them"
        )

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        where = None if generator is None else generator.device
        draw = 2 * torch.rand(7, self.rows, generator=generator, device=where).cpu() - 1
        return draw[:3] * math.pi, draw[3:].clone()

    def extra_repr(self) -> str:
        return f"{self.rows}, seed={self.seed}"


def _rows(x: Tensor, extra: int) -> Tensor:
    return x.unsqueeze(-2) if extra else x


def _reflect(h: Tensor, v: Tensor) -> Tensor:
    """``h - 2 (vᴴh) v / |v|²`` for each row h; the identity for a zero vector."""
    square = (v.real.square() + v.imag.square()).sum(-1, keepdim=True)
    square = square.clamp_min(torch.finfo(square.dtype).tiny)
    return h - (h * v.conj()).sum(-1, keepdim=True) * (2 * v / square)
