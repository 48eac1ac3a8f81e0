"""Matrices by their singular value decomposition, with bases made of reflections."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from evenflow.maps import reflections
from evenflow.maps.matrix_operations import addmm, minus_mm, residual
from evenflow.maps.singular_values import SingularValues, WithSingularValues

Pair = Tensor | tuple[Tensor, Tensor]  # one for each side; in a tensor, along its first dimension


class SVD(WithSingularValues):
    """``W = H_n(u_n) ... H_k1(u_k1) diag(s) H_k2(v_k2) ... H_n(v_n)`` with singular values s held within a margin.

    With min(rows, columns) reflections on either side: every matrix whose singular values the margin allows, of any
    shape. On a rectangular W the diagonal is padded with zeros.

    Shapes:
        raw: u ``(..., m1·rows - m1(m1-1)/2)``, v ``(..., m2·columns - m2(m2-1)/2)``, p ``(..., min(rows, columns))``;
        matrix ``(..., rows, columns)``. About fifteen products of n x n by n x m matrices for a value and its gradient.

    Args:
        reflectors: m1 and m2 as a pair, or one number for both; from 0 to the side's size, by default the smaller size.
        center, margin, bound: s* (1), r (0.01; None: no bound) and how (``"sigmoid"`` or ``"clip"``), see
            `SingularValues`.
        rows, columns, precision: see `Map`.

    Starting value: vectors drawn Glorot-uniform, of length one; all singular values s*.

    >>> map = SVD(64, reflectors=16, margin=0.1)
    >>> s = torch.linalg.svdvals(map(*map.start()))
    >>> bool((s - 1).abs().max() < 1e-5)
    True

    Reference: Zhang, Lei and Dhillon 2018.
    """

    def __init__(
        self,
        rows: int,
        columns: int | None = None,
        *,
        reflectors: int | tuple[int, int] | None = None,
        center: float = 1.0,
        margin: float | str | None = 0.01,
        bound: str = "sigmoid",
        precision: str | None = None,
    ) -> None:
        super().__init__(rows, columns, precision=precision)
        self.rank = min(self.rows, self.columns)
        if reflectors is None:
            reflectors = self.rank
        m1, m2 = reflectors if isinstance(reflectors, (tuple, list)) else (reflectors, reflectors)
        for m, side in ((m1, self.rows), (m2, self.columns)):
            if not isinstance(m, int) or not 0 <= m <= side:
                raise ValueError(f"reflectors must be from 0 to {side} for a side of {side}, got {m!r}")
        self.m1, self.m2, self.spectrum = m1, m2, SingularValues(center, margin, bound)
        self.twins = m1 == m2 and self.rows == self.columns

    def constants(self, device: torch.device) -> dict[str, Tensor]:
        return {
            "filled_u": reflections.places(self.m1, self.rows, device),
            "filled_v": reflections.places(self.m2, self.columns, device),
        }

    def filled(self, side: str, numbers: Tensor) -> Tensor:
        """Return the flat indices of the packed numbers of side ``"u"`` or ``"v"``, on the device of `numbers`."""
        return self.constant(f"filled_{side}", numbers.device)

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return (
            (reflections.count(self.m1, self.rows),),
            (reflections.count(self.m2, self.columns),),
            (self.rank,),
        )

    def bases(self, *raw: Tensor) -> tuple[Pair, Pair, Pair]:
        """Return the vectors as rows, u ``(..., m1, rows)`` and v ``(..., m2, columns)``, with S and Y of each side.

        Two sides of one shape are one tensor: half the operations, each twice as large.
        """
        if self.twins:
            UV = reflections.vectors(torch.stack(raw[:2]), self.filled("u", raw[0]), self.m1, self.rows)
            return UV, *reflections.compact(UV)
        U = reflections.vectors(raw[0], self.filled("u", raw[0]), self.m1, self.rows)
        V = reflections.vectors(raw[1], self.filled("v", raw[1]), self.m2, self.columns)
        (Su, Yu), (Sv, Yv) = reflections.compact(U), reflections.compact(V)
        return (U, V), (Su, Sv), (Yu, Yv)

    def kernels(self, tensor: Tensor) -> ModuleType | None:
        """Return the module of CUDA kernels, for square matrices."""
        return reflections.kernels(tensor, self.rows, self.m1, self.m2) if self.rows == self.columns else None

    def evaluate(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        kernels = self.kernels(raw[0])
        if kernels is None:
            return self.blocked_forward(*raw)
        s = self.singular_values(*raw)
        return kernels.forward(self.rows, self.m1, raw[0], (self.m2, raw[1], s)), (*raw, s)

    def vjp(self, G: Tensor, W: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        kernels = self.kernels(W) if len(saved) == 4 else None  # four tensors are saved by the kernels
        if kernels is None:
            return self.blocked_vjp(G, *saved)
        u, v, p, s = saved
        slopes = kernels.vjp(G, W, self.rows, self.m1, u, (self.m2, v, s))
        du, dv, ds = slopes.split([u.shape[-1], v.shape[-1], self.rank], -1)
        return du, dv, ds * self.spectrum.derivatives(p)

    def blocked_forward(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the matrix by products of matrices, and the tensors that `blocked_vjp` needs."""
        UV, S, Y = self.bases(*raw)
        s = self.singular_values(*raw)
        # A = diag(s) (I - VᵀYv)ᵀ, then W = (I - UᵀYu) A: nothing larger than n x n by m.
        A = minus_mm(self._padded(Y[1][..., : self.rank] * s.unsqueeze(-2)).mT, UV[1])
        A.diagonal(dim1=-2, dim2=-1).add_(s)
        P = Y[0] @ A
        sides = (UV, S, Y) if self.twins else (*UV, *S, *Y)
        return addmm(A, UV[0].mT, P, 1, -1), (raw[2], s, A, P, *sides)

    def blocked_vjp(self, G: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the free numbers."""
        p, s, A, P, *sides = saved
        UV, S, Y = sides if self.twins else (sides[:2], sides[2:4], sides[4:])
        UG = UV[0] @ G
        dA = addmm(G, Y[0].mT, UG, 1, -1)[..., : self.rank, :]
        N, Ys = UV[1] @ dA.mT, Y[1][..., : self.rank]
        ds = torch.diagonal(dA, dim1=-2, dim2=-1) - (N * Ys).sum(-2)
        dYv = N * s.unsqueeze(-2)
        if self.columns > self.rank:
            dYv = torch.nn.functional.pad(dYv, (0, self.columns - self.rank))
        # Gradients of the vectors and of Y on each side; the minus signs of W follow at the end.
        direct = (P @ G.mT, (Ys * s.unsqueeze(-2)) @ dA)
        through = (UG @ A.mT, dYv)
        if self.twins:
            both = reflections.compact_vjp(torch.stack(direct), torch.stack(through), *sides)
            du, dv = both.flatten(-2).index_select(-1, self.filled("u", both)).neg_()
        else:
            dU, dV = (reflections.compact_vjp(direct[i], through[i], UV[i], S[i], Y[i]) for i in (0, 1))
            du = dU.flatten(-2).index_select(-1, self.filled("u", dU)).neg_()
            dv = dV.flatten(-2).index_select(-1, self.filled("v", dV)).neg_()
        return du, dv, ds * self.spectrum.derivatives(p)

    def _padded(self, wide: Tensor) -> Tensor:
        """Append zero columns up to the number of rows of W."""
        return torch.nn.functional.pad(wide, (0, self.rows - self.rank)) if self.rows > self.rank else wide

    def plain(self, *raw: Tensor) -> Tensor:
        (U, V), _, (Yu, Yv) = self.bases(*raw)
        diagonal = torch.diag_embed(self.singular_values(*raw))
        diagonal = torch.nn.functional.pad(diagonal, (0, self.columns - self.rank, 0, self.rows - self.rank))
        A = diagonal - (diagonal @ Yv.mT) @ V
        return A - U.mT @ (Yu @ A)

    def product(self, h: Tensor, *raw: Tensor) -> Tensor:
        raw = self.full(*raw)
        (U, V), _, (Yu, Yv) = self.bases(*raw)
        s = self.singular_values(*raw).to(h.dtype)
        h = h - (h @ V.mT.to(h.dtype)) @ Yv.to(h.dtype)
        h = self._padded(h[..., : self.rank] * (s.unsqueeze(-2) if s.dim() > 1 else s))
        return h - (h @ Yu.mT.to(h.dtype)) @ U.to(h.dtype)

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        full = matrix.double()
        if self.m1 >= self.rank and self.m2 >= self.rank:
            P, s, Qh = torch.linalg.svd(full, full_matrices=False)
            U, V = reflections.reduce(P, self.m1)[0], reflections.reduce(Qh.mH, self.m2)[0]
        elif self._needs_no_reflectors(full):
            s = full.diagonal(dim1=-2, dim2=-1)
            U, V = (full.new_zeros(*full.shape[:-2], m, n) for m, n in ((self.m1, self.rows), (self.m2, self.columns)))
        else:
            U, V, s = self._solve_orthogonal(full)
        u, v = U.flatten(-2)[..., self.filled("u", U)], V.flatten(-2)[..., self.filled("v", V)]
        return u, v, self.spectrum.inverse(s)

    def _needs_no_reflectors(self, full: Tensor) -> bool:
        """Return True if the matrix is diagonal and within the margin."""
        s, diagonal = full.diagonal(dim1=-2, dim2=-1), torch.zeros_like(full)
        diagonal.diagonal(dim1=-2, dim2=-1).copy_(s)
        return self.spectrum.allows(s) and bool((full - diagonal).abs().max() <= 1e-7 * full.abs().max())

    def _solve_orthogonal(self, full: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Theorem 3: n reflections on both sides together give every multiple of an orthogonal matrix."""
        n = self.rows
        scale = torch.linalg.matrix_norm(full, 2).unsqueeze(-1)
        turned = full / scale.unsqueeze(-1)
        if n != self.columns or self.m1 + self.m2 < n or not residual(turned).max() <= 1e-4:
            raise ValueError(
                f"SVD with {self.m1} and {self.m2} reflectors cannot make this matrix; {self.rank} on either side can"
            )
        U, V = (full.new_zeros(*full.shape[:-2], m, n) for m in (self.m1, self.m2))
        first, second, m = (U, V, self.m1) if self.m1 >= self.m2 else (V, U, self.m2)
        A = reflections.reduce(turned if first is U else turned.mT, n)[0]
        first.copy_(A[..., :m, :])
        rest = A[..., m:, :]
        # The other side has the rest in reverse order; each vector there has more coordinates than it needs.
        second[..., second.shape[-2] - rest.shape[-2] :, :] = rest.flip(-2)
        return U, V, scale.expand(*scale.shape[:-1], n)

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        return (
            reflections.first_vectors(self.m1, self.rows, generator),
            reflections.first_vectors(self.m2, self.columns, generator),
            self.spectrum.start(self.rank),
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reflectors=({self.m1}, {self.m2}), {self.spectrum}"
