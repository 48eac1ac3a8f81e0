"""What tasks share whose answer is one class after the last step."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from .task import Task


class Classification(Task):
    """One of O classes, read after the last step: cross entropy to minimise, the share of right answers to judge by.

    Shapes:
        outputs ``(B, O)``, targets ``(B,)`` int64.
    """

    readout: ClassVar[str] = "last"

    @property
    def metric_name(self) -> str:
        return "accuracy"

    @property
    def higher_is_better(self) -> bool:
        return True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(-1) == targets).float().mean()
