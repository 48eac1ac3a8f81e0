"""Orthogonal matrices as products of reflections."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.maps import reflections
from evenflow.maps.map import Map
from evenflow.maps.matrix_operations import minus_mm, need_orthogonal


class Householder(Map):
    """``W = H_n(u_n) ... H_k(u_k)``, ``H(u) = I - 2uuᵀ/|u|²``, with m = n - k + 1 reflections.

    u_k has the last k coordinates; a zero vector gives the identity. With m = n: every orthogonal matrix, of either
    determinant.

    Shapes:
        raw ``(..., mn - m(m-1)/2)``: u_n, then u_{n-1}, and so on; matrix ``(..., n, n)``. Six products of n x n by
        n x m matrices for a value and its gradient; `product` costs two of m x n by the batch.

    Args:
        reflectors: m, from 0 (the identity) to n (default).
        rows, columns, precision: see `Map`.

    Starting value: directions drawn Glorot-uniform, as in the released Spectral-RNN, of length one.

    >>> map = Householder(64, reflectors=16)
    >>> bool(residual(map(*map.start())) < 1e-5)
    True

    Note, length: only the direction of a vector matters. The release scales vectors to length one after each update;
    here they keep their length, and the gradient is orthogonal to them.

    Reference: Mhammedi et al. 2017; Zhang, Lei and Dhillon 2018.
    """

    orthogonal = True

    def __init__(
        self, rows: int, columns: int | None = None, *, reflectors: int | None = None, precision: str | None = None
    ) -> None:
        super().__init__(rows, columns, precision=precision)
        self.need_square()
        reflectors = rows if reflectors is None else reflectors
        if not isinstance(reflectors, int) or not 0 <= reflectors <= rows:
            raise ValueError(f"reflectors must be from 0 to {rows}, the size of the matrix, got {reflectors!r}")
        self.reflectors = reflectors

    def constants(self, device: torch.device) -> dict[str, Tensor]:
        return {"filled": reflections.places(self.reflectors, self.rows, device)}

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((reflections.count(self.reflectors, self.rows),),)

    def vectors(self, raw: Tensor) -> Tensor:
        """Return the vectors as rows ``(..., m, n)``, u_n first."""
        return reflections.vectors(raw, self.constant("filled", raw.device), self.reflectors, self.rows)

    def evaluate(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        kernels = reflections.kernels(raw[0], self.rows, self.reflectors)
        if kernels is None:
            return self.blocked_forward(raw[0])
        return kernels.forward(self.rows, self.reflectors, raw[0]), (raw[0],)

    def vjp(self, G: Tensor, W: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        kernels = reflections.kernels(W, self.rows, self.reflectors) if len(saved) == 1 else None
        if kernels is None:
            return (self.blocked_vjp(G, *saved),)
        return (kernels.vjp(G, W, self.rows, self.reflectors, saved[0]),)

    def blocked_forward(self, raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the matrix by products of matrices, and the tensors that `blocked_vjp` needs."""
        V = self.vectors(raw)
        S, Y = reflections.compact(V)
        W = minus_mm(V.mT, Y)
        W.diagonal(dim1=-2, dim2=-1).add_(1)
        return W, (V, S, Y)

    def blocked_vjp(self, G: Tensor, V: Tensor, S: Tensor, Y: Tensor) -> Tensor:
        """Return the gradient of the packed vectors."""
        dV = reflections.compact_vjp(minus_mm(Y, G.mT), minus_mm(V, G), V, S, Y)
        return dV.flatten(-2).index_select(-1, self.constant("filled", dV.device))

    def plain(self, *raw: Tensor) -> Tensor:
        V = self.vectors(raw[0])
        return torch.eye(self.rows, dtype=V.dtype, device=V.device) - V.mT @ reflections.compact(V)[1]

    def product(self, h: Tensor, *raw: Tensor) -> Tensor:
        V = self.vectors(self.full(*raw)[0])
        Y = reflections.compact(V)[1].to(h.dtype)
        return h - (h @ Y.mT) @ V.to(h.dtype)

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        full = matrix.double()
        need_orthogonal(full, "Householder", matrix.dtype)
        V, rest = reflections.reduce(full, self.reflectors)
        if self.reflectors < self.rows and not reflections.left_over(rest) < 1e-3:
            raise ValueError(f"Householder with {self.reflectors} reflectors cannot make this matrix; {self.rows} can")
        return (V.flatten(-2)[..., self.constant("filled", V.device)],)

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        return (reflections.first_vectors(self.reflectors, self.rows, generator),)

    def extra_repr(self) -> str:
        return f"{self.rows}, reflectors={self.reflectors}"
