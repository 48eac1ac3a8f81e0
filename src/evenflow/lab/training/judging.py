"""What a run is judged by: validations along the way, and one test at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from evenflow.lab.tasks import Batch, Task

from . import checkpoint, evaluation
from .settings import VALIDATION_BATCHES

if TYPE_CHECKING:
    from .loop import Loop


class Judging:
    """Mean loss and metric of a loop's model over sequences that it does not train on."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def validate(self) -> tuple[float, float]:
        """Over what is held out: all of a data set, or batches that are the same every time."""
        return self._mean(self._loop.task.held_out(), self.held_out())

    def held_out(self) -> Iterable[Batch]:
        """The batches of a validation."""
        batches = self._loop.settings.validation_batches
        every = None if batches is not None else self._every(self._loop.task.held_out())
        if every is not None:
            return every
        return (self._loop.drawn("validation", index) for index in range(batches or VALIDATION_BATCHES))

    def test(self, weights: dict[str, Tensor] | None) -> tuple[float, float] | None:
        """Over the test part with these weights; None where the task has no such part. The model keeps its own."""
        task, model = self._loop.task.test(), self._loop.model
        every = None if task is None else self._every(task)
        if task is None or every is None or weights is None:
            return None
        last = checkpoint.weights_of(model)
        checkpoint.load_weights(model, weights, "the best checkpoint")
        try:
            return self._mean(task, every)
        finally:
            checkpoint.load_weights(model, last, "the last step")

    def _every(self, task: Task) -> Iterator[Batch] | None:
        loop = self._loop
        size = loop.settings.batch_size
        if not task.carries:
            size = max(size, evaluation.AT_LEAST)
        return task.every_batch(size, loop.position(), loop.fabric.device)

    def _mean(self, task: Task, batches: Iterable[Batch]) -> tuple[float, float]:
        loop = self._loop
        loss, metric, weight = loop.read(evaluation.sums(loop.module, task, batches, loop.fabric.device))
        return loss / weight, task.summary(metric / weight)
