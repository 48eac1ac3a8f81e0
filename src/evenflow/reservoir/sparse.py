"""The matrix of a reservoir."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.maps import Free

DRAWS = 100  # before a hidden size and density count as too small for a cycle


class Sparse(Free):
    """A free matrix that starts with few non-zeros and a given spectral radius.

    Args:
        radius: largest absolute eigenvalue at the start.
        density: the share of entries that are not zero.

    Starting value: normal numbers at places drawn without return, scaled to `radius`. A draw without a cycle has radius
    0 and is drawn again. The eigenvalues cost O(n³): half a second for 1,000 units on one core.
    """

    def __init__(self, size: int, radius: float, density: float) -> None:
        super().__init__(size)
        self.reach, self.density = radius, density

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
                return ((W * (self.reach / torch.linalg.eigvals(W).abs().max())).float(),)
        raise ValueError(
            f"density must be larger for {self.rows} units, as {DRAWS} draws had no cycle, got {self.density!r}"
        )


def cyclic(W: Tensor) -> bool:
    """Whether the graph of the non-zeros has a cycle; without one every eigenvalue is 0, whatever rounding makes of it.

    Units that read from no unit left are taken away until all that are left read from another.
    """
    reads, left = (W != 0).to(W.dtype), W.new_ones(len(W))
    while (fewer := ((reads @ left > 0) & (left > 0)).to(W.dtype)).sum() < left.sum():
        left = fewer
    return bool(left.any())
