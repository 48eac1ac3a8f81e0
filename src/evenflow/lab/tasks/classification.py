"""What tasks share whose answers are classes: one after the last step, or the next symbol at every step."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from .task import Batch, Task

PADDING = -100  # a target that the loss ignores


class Classification(Task):
    """One of O classes after the last step. Loss: cross entropy. Metric: accuracy; `solved_limit` counts as solved.

    Shapes:
        outputs ``(B, O)``, targets ``(B,)`` int64.
    """

    problem = "classification"
    readout = "last"
    metric_name = "accuracy"
    higher_is_better = True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(-1) == targets).float().mean()


class NextSymbol(Task):
    """One of V symbols at every step. Loss: cross entropy over the steps that are not padding.

    Shapes:
        outputs ``(T, B, V)``, targets ``(T, B)`` int64, -100 past the end of a sequence.
    """

    problem = "classification"
    readout = "every"
    higher_is_better = False

    @property
    def output_size(self) -> int:
        assert self.vocabulary is not None
        return self.vocabulary

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=PADDING)

    def weight(self, batch: Batch) -> int | Tensor:
        return batch.targets.numel() if batch.lengths is None else batch.lengths.sum()
