"""Rotations as exponentials around a base that follows them (dtriv)."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.checks import whole_number
from evenflow.maps.exponential import Exponential
from evenflow.maps.map import Map


class MovingExponential(Map):
    """``W = exp(C) exp(B)`` of a trained skew-symmetric B and a base C: every rotation (determinant +1).

    Every so many updates `move` writes log W into C and zero into B, so that the matrix stays as it is. Near B = 0 the
    gradient of B is that along the rotations; far from it, as in `Exponential`, the exponential distorts it.
    `maps.move_bases` moves all bases of a module that are due, and `fit` calls it after each update.

    Shapes:
        raw ``(..., n(n-1)/2)``, matrix ``(..., n, n)``; the buffer base ``(n(n-1)/2)``, C. n(n-1)/2 trained numbers;
        the cost of two `Exponential`, without gradient for one of them, and a logarithm for each move.

    Args:
        every: updates between two moves. Default: 100.
        init: starting value, see `Exponential`.
        rows, columns, precision: see `Map`.

    Starting value: C = 0 and B as in `Exponential`.

    >>> map = MovingExponential(64)
    >>> bool(residual(map(*map.start())) < 1e-5)
    True

    Note on the momentum: what an optimiser remembers of B stays when the base moves, as in the authors' code.

    Reference: Lezcano-Casado 2019 (dtriv).
    """

    orthogonal = True
    capturable = False  # the base moves between updates
    base: Tensor

    def __init__(
        self,
        rows: int,
        columns: int | None = None,
        *,
        every: int = 100,
        init: str = "henaff",
        precision: str | None = None,
    ) -> None:
        super().__init__(rows, columns, precision=precision)
        self.need_square()
        whole_number("every", every, 1)
        self.every = every
        self.turn = Exponential(rows, init=init)
        self.register_buffer("base", torch.zeros(self.turn.raw_shapes[0], device=torch.get_default_device()))

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return self.turn.raw_shapes

    @property
    def moves_every(self) -> int | None:
        return self.every

    def reset_buffers(self) -> None:
        self.base.zero_()

    def evaluate(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        base, (turn, saved) = self._base(raw[0].dtype), self.turn.evaluate(*raw)
        return base @ turn, (base, turn, *saved)

    def vjp(self, G: Tensor, W: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        base, turn, *others = saved
        return self.turn.vjp(base.mT @ G, turn, *others)

    def plain(self, *raw: Tensor) -> Tensor:
        return self.turn.plain(self.base.to(raw[0].dtype)) @ self.turn.plain(*raw)

    @torch.no_grad()
    def move(self, *raw: Tensor) -> None:
        B = self.turn.logarithm(self.evaluate(raw[0].double())[0].cpu())
        self.base.copy_(B.flatten()[self.turn.upper(B)])
        raw[0].zero_()

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        return self.turn.inverse((self._base(torch.float64).mT @ matrix.double()).to(matrix.dtype))

    def _base(self, dtype: torch.dtype) -> Tensor:
        """exp(C)."""
        return self.turn.evaluate(self.base.to(dtype))[0]

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        return self.turn.start(generator)

    def extra_repr(self) -> str:
        return f"{self.rows}, every={self.every}, init={self.turn.init!r}"
