"""Antisymmetric matrices, shifted by damping."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.checks import number
from evenflow.maps.map import Map


class Antisymmetric(Map):
    """``W = B - Bᵀ - γ I`` with B above the diagonal: eigenvalues on the line with real part -γ.

    Shapes:
        raw ``(..., n(n-1)/2)``, the entries of B row by row; matrix ``(..., n, n)``.

    Args:
        gamma: γ, at least 0. Default: 0.01. A little damping keeps an Euler step of a cell stable.

    Starting value: normal numbers with variance 1/n.

    >>> W = make("antisymmetric", 4, gamma=0.0)(torch.randn(6))
    >>> bool((W + W.mT).abs().max() == 0)
    True

    Reference: Chang, Chen, Haber and Chi 2019.
    """

    def __init__(
        self, rows: int, columns: int | None = None, *, gamma: float = 0.01, precision: str | None = None
    ) -> None:
        super().__init__(rows, columns, precision=precision)
        self.need_square()
        number("gamma", gamma, least=0)
        self.gamma = gamma

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.rows * (self.rows - 1) // 2,),)

    def matrix(self, *raw: Tensor) -> Tensor:
        n, (upper,) = self.rows, raw
        i, j = torch.triu_indices(n, n, 1, device=upper.device)
        B = upper.new_zeros(*upper.shape[:-1], n * n).index_copy(-1, i * n + j, upper).unflatten(-1, (n, n))
        return B - B.mT - self.gamma * torch.eye(n, dtype=upper.dtype, device=upper.device)

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        n = self.rows
        shifted = matrix + self.gamma * torch.eye(n, dtype=matrix.dtype, device=matrix.device)
        off = float((shifted + shifted.mT).abs().max())
        if not off <= 1e-4:
            raise ValueError(f"Antisymmetric makes W with W + Wᵀ = -2γ I, got one that differs by {off:.2g}")
        i, j = torch.triu_indices(n, n, 1)
        return (shifted[..., i, j],)

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        device = "cpu" if generator is None else generator.device
        draw = torch.randn(*self.raw_shapes[0], generator=generator, device=device).cpu()
        return (draw / self.rows**0.5,)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, gamma={self.gamma}"
