"""The sparse random matrix of a reservoir, with a chosen spectral radius."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.maps import Free

DRAWS = 100  # attempts to draw a matrix with a cycle


class Sparse(Free):
    """A free matrix whose initial value is sparse and has a chosen spectral radius.

    Args:
        size: rows and columns.
        radius: largest absolute eigenvalue of the initial value.
        density: the share of entries that are not zero.

    Starting value: normal numbers at random places, scaled to `radius`. A matrix without a cycle has radius 0 and is
    drawn again. The eigenvalues cost O(n³): half a second for 1,000 units on one core.
    """

    def __init__(self, size: int, radius: float, density: float) -> None:
        super().__init__(size)
        self.radius, self.density = radius, density

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        where = None if generator is None else generator.device
        entries = self.rows * self.rows
        count = max(1, round(self.density * entries))
        for _ in range(DRAWS):
            W = torch.zeros(entries, dtype=torch.float64, device=where)
            places = torch.randperm(entries, generator=generator, device=where)[:count]
            W[places] = torch.randn(count, generator=generator, dtype=torch.float64, device=where)
            W = W.view(self.rows, self.rows).cpu()
            if cyclic(W):
                return ((W * (self.radius / torch.linalg.eigvals(W).abs().max())).float(),)
        raise ValueError(
            f"density must be larger for {self.rows} units, as {DRAWS} draws had no cycle, got {self.density!r}"
        )


def cyclic(W: Tensor) -> bool:
    """True if the graph of the non-zeros has a cycle; without one every eigenvalue is exactly 0.

    Units that read from no remaining unit are removed until every remaining unit reads from another one.
    """
    reads, left = (W != 0).to(W.dtype), W.new_ones(len(W))
    while (fewer := ((reads @ left > 0) & (left > 0)).to(W.dtype)).sum() < left.sum():
        left = fewer
    return bool(left.any())
