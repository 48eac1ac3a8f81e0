"""Random draws, one for each sequence of a batch."""

from __future__ import annotations

import torch
from torch import Tensor


class Draw:
    """Random draws for a batch of `size`, all from one generator and on its device.

    >>> draw = Draw(3, torch.Generator().manual_seed(0))
    >>> draw.unit(5).shape, draw.whole(0, 9).shape, draw.places(2, 10).shape
    (torch.Size([5, 3]), torch.Size([3]), torch.Size([2, 3]))
    """

    def __init__(self, size: int, generator: torch.Generator) -> None:
        self.size, self.generator = size, generator

    def unit(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1) of shape ``(*shape, size)``."""
        return torch.rand(*shape, self.size, generator=self.generator, device=self.generator.device)

    def below(self, count: int, *shape: int) -> Tensor:
        """Whole numbers, uniform from 0 to ``count - 1``, of shape ``(*shape, size)``."""
        return torch.randint(count, (*shape, self.size), generator=self.generator, device=self.generator.device)

    def whole(self, low: Tensor | int, high: Tensor | int) -> Tensor:
        """Whole numbers, uniform from `low` to `high` inclusive, one for each sequence."""
        count = high - low + 1
        # The product may round up to `count` itself, hence the clamp.
        return low + (self.unit() * count).long().clamp(max=count - 1)

    def places(self, count: int, steps: int) -> Tensor:
        """Different steps below `steps`, every choice of `count` of them as likely, in order: ``(count, size)``."""
        taken = self.below(steps, 1)
        for already in range(1, count):
            place = self.below(steps - already)
            # The place counts free steps alone: walk past the taken ones, which are in order.
            for other in taken:
                place = place + (place >= other)
            taken = torch.cat((taken, place[None])).sort(0).values
        return taken
