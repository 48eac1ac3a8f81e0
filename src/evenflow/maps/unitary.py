"""Every unitary matrix, from real numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow.checks import one_of
from evenflow.maps.cayley import cayley, cayley_inverse, cayley_vjp, plain_cayley
from evenflow.maps.logarithm import unitary_log
from evenflow.maps.map import COMPLEX
from evenflow.maps.matrix_operations import need_orthogonal
from evenflow.maps.squaring import WithAngleRange, exponential, exponential_vjp

METHODS = ("exponential", "cayley")
STARTS = ("phases", "haar", "identity")


class Unitary(WithAngleRange):
    """``W = exp(A)`` or ``W = (I + A)⁻¹(I - A)`` of a skew-Hermitian A: unitary matrices of full capacity.

    The exponential gives all unitary matrices, Cayley's transform those without the eigenvalue -1.

    Shapes:
        raw ``(..., n, n)``, real: the real parts of A above the diagonal, the imaginary parts on and below it; matrix
        ``(..., n, n)``, complex. n² numbers; the cost of `Exponential` or `Cayley`, times about four.

    Args:
        method: ``"exponential"`` (default) or ``"cayley"``.
        init: ``"phases"``: a diagonal W with angles U(-π, π), for Cayley U(-π/2, π/2). ``"haar"``: a uniform draw from
            all unitary matrices. ``"identity"``.
        rows, columns, precision: see `Map`.

    Starting value: phases.

    >>> map = Unitary(64)
    >>> bool(residual(map(*map.start())) < 1e-5)
    True

    Reference: Wisdom et al. 2016.
    """

    orthogonal = True

    def __init__(
        self,
        rows: int,
        columns: int | None = None,
        *,
        method: str = "exponential",
        init: str = "phases",
        precision: str | None = None,
    ) -> None:
        super().__init__(rows, columns, precision=precision)
        self.need_square()
        one_of("method", method, METHODS)
        one_of("init", init, STARTS)
        self.method, self.init = method, init

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.rows, self.rows),)

    def skew(self, raw: Tensor) -> Tensor:
        """Return the skew-Hermitian matrix of the free numbers."""
        real, imaginary = raw.triu(1), raw.tril(-1)
        return torch.complex(real - real.mT, raw.tril() + imaginary.mT)

    def pack(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the free numbers from the gradient of all entries of A."""
        real, imaginary = gradient.real, gradient.imag
        return (real - real.mT).triu(1) + imaginary.tril() + imaginary.mT.tril(-1)

    def evaluate(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.method == "exponential":
            return exponential(self.skew(raw[0]), self.angle_range)
        return cayley(self.skew(raw[0].double())).to(COMPLEX[raw[0].dtype]), ()

    def vjp(self, G: Tensor, W: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        if self.method == "exponential":
            return (self.pack(exponential_vjp(G, *saved)),)
        return (self.pack(cayley_vjp(G, W)),)

    def plain(self, *raw: Tensor) -> Tensor:
        A = self.skew(raw[0])
        if self.method == "cayley":
            return plain_cayley(A)
        # In float32 torch's is off by some 1e-5, with which lengths are not preserved.
        return torch.linalg.matrix_exp(A.to(torch.complex128)).to(A.dtype)

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        full = matrix.to(torch.complex128)
        need_orthogonal(full, "Unitary", matrix.dtype)
        A = torch.stack([self.logarithm(one) for one in full.reshape(-1, self.rows, self.rows)])
        raw = A.real.triu(1) + A.imag.tril()
        return (raw.reshape(matrix.shape),)

    def logarithm(self, matrix: Tensor) -> Tensor:
        """Return the A of one unitary complex128 matrix ``(n, n)``, or raise a ValueError."""
        if self.method == "exponential":
            return unitary_log(matrix)
        A = cayley_inverse(matrix)
        if A is None:
            raise ValueError("Unitary by 'cayley' cannot make a matrix with the eigenvalue -1; by 'exponential' it can")
        return A

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        n, cayley = self.rows, self.method == "cayley"
        where = None if generator is None else generator.device
        if self.init == "identity":
            return (torch.zeros(n, n),)
        if self.init == "phases":
            angle = (2 * torch.rand(n, generator=generator, device=where).cpu() - 1) * math.pi
            return (torch.diag(-(angle / 4).tan() if cayley else angle),)
        normal = torch.randn(n, n, generator=generator, dtype=torch.complex128, device=where).cpu()
        Q, R = torch.linalg.qr(normal)
        # QR alone prefers some phases; with the phases of R's diagonal the distribution is uniform.
        return (self.inverse(Q * torch.sgn(R.diagonal()))[0].float(),)

    def extra_repr(self) -> str:
        return f"{self.rows}, method={self.method!r}, init={self.init!r}"
