"""Matrices with few entries that are not zero."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow import init
from evenflow.checks import number
from evenflow.maps.map import Map


class Thresholded(Map):
    """The free numbers, all but the largest of them replaced by zero.

    Numbers that are zero in the matrix stay as they are and get no gradient; they come back when others become smaller.

    Shapes:
        raw ``(..., rows, columns)``; matrix likewise, with ``⌈density · rows · columns⌉`` entries that may be nonzero.

    Args:
        density: the share of entries that stay, above 0 and at most 1. Default: 0.3.
        rows, columns, precision: see `Map`.

    Starting value: the numbers of an orthogonal matrix.

    >>> int((make("sparse", 10, density=0.2)(*make("sparse", 10).start()) != 0).sum())
    20

    Reference: Kusupati et al. 2018, whose optimiser sets the smallest numbers of a matrix to zero.
    """

    def __init__(
        self, rows: int, columns: int | None = None, *, density: float = 0.3, precision: str | None = None
    ) -> None:
        super().__init__(rows, columns, precision=precision)
        number("density", density, above=0, most=1)
        self.density = density
        self.kept = math.ceil(density * self.rows * self.columns)

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.rows, self.columns),)

    def matrix(self, *raw: Tensor) -> Tensor:
        flat = raw[0].flatten(-2)
        largest = flat.detach().abs().topk(self.kept, -1).indices
        mask = torch.zeros_like(flat).scatter(-1, largest, 1.0)
        return (flat * mask).unflatten(-1, (self.rows, self.columns))

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        most = int((matrix != 0).flatten(-2).sum(-1).max())
        if most > self.kept:
            raise ValueError(f"Thresholded makes matrices with up to {self.kept} nonzero entries, got one with {most}")
        return (matrix.clone(),)

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        return (init.orthogonal(self.rows, self.columns, generator=generator, device="cpu"),)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, density={self.density}"
