"""Matrices of low rank."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow import init
from evenflow.checks import whole_number
from evenflow.maps.map import Map


class LowRank(Map):
    """``W = A Bᵀ`` with ``rank`` columns in A and B: fewer numbers, and a narrower product.

    Shapes:
        raw: A ``(..., rows, rank)``, B ``(..., columns, rank)``; matrix ``(..., rows, columns)``.

    Args:
        rank: at most the smaller side. Default: a quarter of the smaller side, at least 1.

    Starting value: orthonormal columns, so that the nonzero singular values of W are 1.

    >>> torch.linalg.matrix_rank(make("low_rank", 8, rank=2)(*make("low_rank", 8, rank=2).start()))
    tensor(2)

    Reference: Kusupati et al. 2018.
    """

    def __init__(
        self, rows: int, columns: int | None = None, *, rank: int | None = None, precision: str | None = None
    ) -> None:
        super().__init__(rows, columns, precision=precision)
        smaller = min(self.rows, self.columns)
        rank = max(1, smaller // 4) if rank is None else rank
        whole_number("rank", rank, 1)
        if rank > smaller:
            raise ValueError(f"rank must be at most {smaller}, the smaller side of the matrix, got {rank}")
        self.rank = rank

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.rows, self.rank), (self.columns, self.rank)

    def matrix(self, *raw: Tensor) -> Tensor:
        return raw[0] @ raw[1].mT

    def product(self, h: Tensor, *raw: Tensor) -> Tensor:
        A, B = self.full(*raw)
        return (h @ B.to(h.dtype)) @ A.mT.to(h.dtype)

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        P, s, Qh = torch.linalg.svd(matrix.double(), full_matrices=False)
        beyond = float((s[..., self.rank :] / s[..., :1].clamp_min(1e-300)).max()) if self.rank < s.shape[-1] else 0.0
        if not beyond <= 1e-5:
            raise ValueError(
                f"LowRank makes matrices of rank {self.rank}, got one whose next singular value is {beyond:.2g} of the "
                f"largest"
            )
        root = s[..., : self.rank].sqrt().unsqueeze(-2)
        return P[..., : self.rank] * root, Qh.mT[..., : self.rank] * root

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        return tuple(init.orthogonal(n, self.rank, generator=generator) for n in (self.rows, self.columns))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}"
