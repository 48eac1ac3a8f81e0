"""Matrices with a chosen share of a symmetric and a skew-symmetric part."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.checks import number
from evenflow.maps.map import Map


class SymmetricSkew(Map):
    """``W = (1 - β) (M + Mᵀ) + β (M - Mᵀ) - γ I``, as in the Lipschitz recurrent network.

    Shapes:
        raw ``(..., n, n)``, the M; matrix ``(..., n, n)``.

    Args:
        beta: β, between 0 (symmetric) and 1 (antisymmetric), without the ends. Default: 0.75.
        gamma: γ, at least 0: a shift of all eigenvalues to the left. Default: 0.001.

    Starting value: normal numbers with deviation 1/n.

    >>> W = make("symmetric_skew", 4)(torch.eye(4))
    >>> W.diagonal()
    tensor([0.4990, 0.4990, 0.4990, 0.4990])

    Reference: Erichson, Azencot, Queiruga, Hodgkinson and Mahoney 2021.
    """

    def __init__(
        self,
        rows: int,
        columns: int | None = None,
        *,
        beta: float = 0.75,
        gamma: float = 0.001,
        precision: str | None = None,
    ) -> None:
        super().__init__(rows, columns, precision=precision)
        self.need_square()
        number("beta", beta, above=0, below=1)
        number("gamma", gamma, least=0)
        self.beta, self.gamma = beta, gamma

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.rows, self.rows),)

    def _damping(self, like: Tensor) -> Tensor:
        return self.gamma * torch.eye(self.rows, dtype=like.dtype, device=like.device)

    def matrix(self, *raw: Tensor) -> Tensor:
        return raw[0] + (1 - 2 * self.beta) * raw[0].mT - self._damping(raw[0])

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        W = matrix + self._damping(matrix)
        return (((W + W.mT) / (1 - self.beta) + (W - W.mT) / self.beta) / 4,)

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        device = "cpu" if generator is None else generator.device
        return (torch.randn(*self.raw_shapes[0], generator=generator, device=device).cpu() / self.rows,)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}, gamma={self.gamma}"
