"""Orthogonal matrices by Cayley's transform of skew-symmetric ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.maps.matrix_operations import addmm
from evenflow.maps.skew import Skew

STRAIGHT = 1e-8  # smallest |1 + eigenvalue| for which the inverse transform keeps half of float64's digits


def cayley(A: Tensor) -> Tensor:
    """Return ``(I + A)⁻¹ (I - A) = 2 (I + A)⁻¹ - I`` of a skew-Hermitian A, which is overwritten."""
    A.diagonal(dim1=-2, dim2=-1).add_(1)
    W = torch.linalg.inv_ex(A).inverse.mul_(2)
    W.diagonal(dim1=-2, dim2=-1).sub_(1)
    return W


def cayley_vjp(G: Tensor, W: Tensor) -> Tensor:
    """Return the gradient of all entries of A, from the gradient G of W."""
    # (I + A)⁻¹ = (I + W)/2, so the inverse is not saved: dA = -½ (I + Wᴴ) G (I + Wᴴ).
    G = addmm(G, W.mH, G)
    return addmm(G, G, W.mH, -0.5, -0.5)


def plain_cayley(A: Tensor) -> Tensor:
    """`cayley` for torch to differentiate. It is its own inverse."""
    I = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    return torch.linalg.solve(I + A, I - A)


def cayley_inverse(W: Tensor) -> Tensor | None:
    """Return the A of one orthogonal or unitary matrix ``(n, n)``, or None if W has the eigenvalue -1."""
    if torch.linalg.svdvals(torch.eye(len(W), dtype=W.dtype, device=W.device) + W)[-1] < STRAIGHT:
        return None
    A = plain_cayley(W)
    return (A - A.mH) / 2


class Cayley(Skew):
    """``W = (I + A)⁻¹ (I - A) D`` of a skew-symmetric A and a fixed diagonal D of signs.

    With D = I: every orthogonal matrix without the eigenvalue -1. A matrix with that eigenvalue needs other signs.

    Shapes:
        raw ``(..., n(n-1)/2)``, matrix ``(..., n, n)``. n(n-1)/2 numbers; one inverse and four products of n x n
        matrices for a value and its gradient.

    Args:
        signs: how many of D's entries are -1 (the first ones; default 0), ``"half"``, or the n signs themselves. Half
            for copying and permuted pixels, a tenth for ordered ones, says Helfrich.
        init: ``"cayley"`` (default), ``"henaff"``, ``"haar"`` or ``"identity"``, see `Skew`; it is the value before D.
        rows, columns, precision: see `Map`.

    Starting value: 2 x 2 rotations with angles up to π/2, times D; near π the entries of A would be very large.

    >>> map = Cayley(64, signs="half")
    >>> bool(residual(map(*map.start())) < 1e-5)
    True

    Reference: Helfrich, Willmott and Ye 2018.
    """

    def __init__(
        self,
        rows: int,
        columns: int | None = None,
        *,
        signs: int | str | Sequence[int] = 0,
        init: str = "cayley",
        precision: str | None = None,
    ) -> None:
        super().__init__(rows, columns, init=init, precision=precision)
        if isinstance(signs, str):
            if signs != "half":
                raise ValueError(f"signs must be a number of minus ones, 'half' or {rows} signs, got {signs!r}")
            signs = rows // 2
        if isinstance(signs, int):
            if not 0 <= signs <= rows:
                raise ValueError(f"signs must be from 0 to {rows} minus ones, got {signs}")
            signs = [-1] * signs + [1] * (rows - signs)
        if len(signs) != rows or any(sign not in (-1, 1) for sign in signs):
            raise ValueError(f"signs must be {rows} numbers, each 1 or -1, got {list(signs)}")
        self.signs = tuple(float(sign) for sign in signs)
        self.negatives = sum(sign == -1 for sign in signs)

    def constants(self, device: torch.device) -> dict[str, Tensor]:
        return super().constants(device) | {"diagonal": torch.tensor(self.signs, dtype=torch.float64, device=device)}

    def evaluate(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        # Always in float64: the inverse loses digits if A is large, and float64 costs hardly more.
        return self.signed(cayley(self.skew(raw[0].double())).to(raw[0].dtype)), ()

    def vjp(self, G: Tensor, W: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        return (self.pack(cayley_vjp(self.signed(G), self.signed(W))),)

    def plain(self, *raw: Tensor) -> Tensor:
        return self.signed(plain_cayley(self.skew(raw[0])))

    def signed(self, matrix: Tensor) -> Tensor:
        if not self.negatives:
            return matrix
        return matrix * self.constant("diagonal", matrix.device).to(matrix.dtype)

    def logarithm(self, matrix: Tensor) -> Tensor:
        A = cayley_inverse(matrix)
        if A is None:
            raise ValueError(
                f"Cayley with {self.negatives} minus signs cannot make this matrix: WD has the eigenvalue -1; "
                f"give other signs, or use Householder"
            )
        return A

    def block(self, angle: Tensor) -> Tensor:
        return -(angle / 2).tan()

    def extra_repr(self) -> str:
        return f"{self.rows}, signs={self.negatives}, init={self.init!r}"
