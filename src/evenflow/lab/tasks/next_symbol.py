"""What tasks share that ask at every step for the next symbol."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from .task import Batch, Task

PADDING = -100  # a target that is not asked for


class NextSymbol(Task):
    """One of V symbols a step, read at every step: cross entropy over all answers that are asked for.

    Shapes:
        outputs ``(T, B, V)``, targets ``(T, B)`` int64, -100 past the end of a sequence.
    """

    readout: ClassVar[str] = "every"

    @property
    def output_size(self) -> int:
        assert self.vocabulary is not None
        return self.vocabulary

    @property
    def higher_is_better(self) -> bool:
        return False

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=PADDING)

    def weight(self, batch: Batch) -> int | Tensor:
        return batch.targets.numel() if batch.lengths is None else batch.lengths.sum()
