"""How good a model is: its outputs on batches, their mean loss and metric, validations of a run and its best one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from evenflow.lab.tasks import Batch, DataSet, Position, Task
from evenflow.models.sequence_model import SequenceModel

from . import checkpoint
from .answer_log import AnswerLog
from .forecast_log import ForecastLog
from .settings import VALIDATION_BATCHES

if TYPE_CHECKING:
    from .loop import Loop

# The smallest batch of a whole pass over a data set: without a gradient a larger batch fits than in training.
LEAST_BATCH = 256
SAVED = ("step", "metric", "loss", "stale", "stopped", "awaited", "digest", "first")


def answer(model: nn.Module, batch: Batch, state: Any = None, padded: bool | None = None) -> tuple[Tensor, Any]:
    """Outputs and final state of a batch.

    Args:
        state: the initial state of a batch that continues the sequences of the batch before; ignored otherwise.
        padded: run ragged batches padded, not packed. Default: on a GPU, where packing would wait for the host.
    """
    options: dict[str, Any] = {"lengths": batch.lengths, "state": state if batch.carried else None}
    if batch.lengths is not None and (batch.inputs.is_cuda if padded is None else padded) and runs_padded(model):
        options["padded"] = True
    return model(batch.inputs, **{name: value for name, value in options.items() if value is not None})


def runs_padded(model: nn.Module) -> bool:
    """Whether a model, or the model that Fabric has wrapped, can run ragged batches padded."""
    # The class is compared by its name because importing it would load all of Fabric.
    inner = cast(nn.Module, model.module) if type(model).__name__ == "_FabricModule" else model
    return isinstance(inner, SequenceModel) and type(inner).forward is SequenceModel.forward and inner.one_way


@torch.no_grad()
def sums(model: nn.Module, task: Task, batches: Iterable[Batch], device: torch.device) -> Tensor:
    """Loss, metric and weight, summed over the batches: the first two divided by the third are means over all answers.

    The model is left in training mode.
    """
    model.eval()
    total, state = torch.zeros(3, device=device), None
    for batch in batches:
        outputs, state = answer(model, batch, state)
        loss, metric = task.loss(outputs, batch.targets), task.metric(outputs, batch.targets)
        weight = torch.as_tensor(task.weight(batch), dtype=total.dtype, device=device)
        total += weight * torch.stack((loss, metric, torch.ones_like(loss)))
    model.train()
    return total


def detach_state(state: Any) -> Any:
    """The state, a tensor or a tuple of tensors or None, without its autograd history."""
    if state is None:
        return None
    return tuple(detach_state(part) for part in state) if isinstance(state, tuple) else state.detach()


class RunEvaluator:
    """Mean loss and metric of a loop's model on sequences that it is not trained on."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def validate(self) -> tuple[float, float]:
        """Loss and metric on the validation set: all of a data set, or the same drawn batches every time."""
        return self._mean(self._loop.task.held_out(), self.validation_batches())

    def validation_batches(self) -> Iterable[Batch]:
        """The batches of a validation."""
        batches = self._loop.settings.validation_batches
        every = None if batches is not None else self._every(self._loop.task.held_out())
        if every is not None:
            return every
        return (self._loop.held_out_batch("validation", index) for index in range(batches or VALIDATION_BATCHES))

    def test(self, weights: dict[str, Tensor] | None) -> tuple[float, float] | None:
        """Loss and metric on the test set with these weights, None for a task without one. The model keeps its own.

        What the weights answer is written to the run folder.
        """
        self._save_answers(weights)
        task, model = self._loop.task.test(), self._loop.model
        every = None if task is None else self._every(task)
        if task is None or every is None or weights is None:
            return None
        with _weights_in_place(model, weights):
            return self._mean(task, every)

    def _save_answers(self, weights: dict[str, Tensor] | None) -> None:
        """Write to the run folder what these weights answer on the test part, or the validation part of other tasks.

        Running text has no answers to look at one by one, and labels that hold together have no confusion matrix.
        """
        loop = self._loop
        if loop.writer is None or weights is None:  # the first process has the writer
            return
        schema = loop.task.schema()
        if schema.kind == "multilabel" or schema.vocabulary is not None:
            return
        test = loop.task.test()
        task = loop.task.held_out() if test is None else test
        every = self._every(task, loop.position()._replace(rank=0, processes=1))
        if every is None:
            count = loop.settings.validation_batches or VALIDATION_BATCHES
            every = (loop.held_out_batch("validation", index, rank=0) for index in range(count))
        log = AnswerLog(schema, task.sequence_name) if isinstance(task, DataSet) else AnswerLog(schema)
        forecasts = ForecastLog(schema)
        # The module inside that of several processes, which would wait for all of them.
        inner: nn.Module = loop.module.module if loop.fabric.world_size > 1 else loop.module
        with _weights_in_place(loop.model, weights), loop.fabric.autocast(), torch.no_grad():
            inner.eval()
            state = None
            for batch in every:
                outputs, state = answer(inner, batch, state)
                if not log.add(batch, outputs):
                    break
                forecasts.add(batch)
            else:
                part = "validation" if test is None else "test"
                arrays = {"part": np.array(part), "step": np.array(loop.best.step), **log.arrays()}
                loop.writer.answers({**arrays, **forecasts.arrays(loop.model)})
            inner.train()

    def _every(self, task: Task, position: Position | None = None) -> Iterator[Batch] | None:
        """All batches of a data set, None for a task that draws its sequences."""
        loop = self._loop
        size = loop.settings.batch_size
        if not task.carries:
            size = max(size, LEAST_BATCH)
        return task.every_batch(size, position or loop.position(), loop.fabric.device)

    def _mean(self, task: Task, batches: Iterable[Batch]) -> tuple[float, float]:
        loop = self._loop
        loss, metric, weight = loop.read(sums(loop.module, task, batches, loop.fabric.device))
        return task.loss_unit * loss / weight, task.summary(metric / weight)


@contextmanager
def _weights_in_place(model: nn.Module, weights: dict[str, Tensor]) -> Iterator[None]:
    """The model has these weights inside the block and its own after it."""
    last = checkpoint.weights_of(model)
    checkpoint.load_weights(model, weights, "the best checkpoint")
    try:
        yield
    finally:
        checkpoint.load_weights(model, last, "the last step")


class BestValidation:
    """The best validation of a run, and early stopping.

    The best is the one with the best metric, of equal ones that with the lowest loss, and of those the latest.

    Attributes:
        step, metric, loss, weights: those of the best validation; None and nan before the first.
        digest: the SHA-256 of the weights in the run folder; None before the first, and in runs without a folder.
        first: the SHA-256 of the first weights that were best in the run folder; None before them.
        stale: validations since one was better than all before it.
        stopped: whether the run should end: `patience` ran out, or the task is solved and `stop_when_solved` is set.
        lost: whether there were best weights when the run was resumed, and they were damaged.
        awaited: the step of a later best validation that the run made before it was resumed from an older checkpoint;
            None if there is none.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.step: int | None = None
        self.metric = self.loss = math.nan
        self.weights: dict[str, Tensor] | None = None
        self.digest: str | None = None
        self.first: str | None = None
        self.stale, self.stopped, self.lost = 0, False, False
        self.awaited: int | None = None

    def update(self, step: int, loss: float, metric: float) -> None:
        """Compare a validation with the best one; better weights are kept and saved."""
        task, settings, writer = self._loop.task, self._loop.settings, self._loop.writer
        sign = 1 if task.higher_is_better else -1
        better = self.step is None or (sign * metric, -loss) > (sign * self.metric, -self.loss)
        level = (metric, loss) == (self.metric, self.loss)
        # A validation that is as good as the best does not put off early stopping, in a run that repeats it either.
        self.stale = 0 if better or (step == self.awaited and not level) else self.stale + 1
        # The weights of a best before the awaited one may be lost, so the awaited one counts even if rounding differs.
        if better or level or step == self.awaited:
            self.step, self.metric, self.loss, self.awaited = step, metric, loss, None
            self.weights = checkpoint.weights_of(self._loop.model)
            if writer is not None:
                self.digest = checkpoint.save_best(writer.checkpoints, self.weights, step, self.first)
                self.first = self.first or self.digest
        solved = settings.stop_when_solved and task.solved(metric)
        # Before the awaited best there may be no weights to end with.
        self.stopped = solved or (
            settings.patience is not None and self.stale >= settings.patience and self.awaited is None
        )

    def replace(self) -> None:
        """Take the present weights in place of the best ones, which are lost; a run that was to stop still stops."""
        stopped, self.lost = self.stopped, False
        self.update(self._loop.step, *self._loop.evaluator.validate())
        self.stopped |= stopped

    def state(self) -> dict[str, Any]:
        """All but the weights, which have a file of their own."""
        return {name: getattr(self, name) for name in SAVED}

    def restore(self, state: Mapping[str, Any], weights: dict[str, Tensor] | None) -> None:
        """Go back to a checkpoint.

        A resumed run makes a later best validation again at the same step, so the file of the best weights may be newer
        than the checkpoint.
        """
        for name in SAVED:
            setattr(self, name, state.get(name))
        # A state that was written by hand may hold anything.
        self.stale, self.stopped = int(self.stale), bool(self.stopped)
        self.metric, self.loss = float(self.metric), float(self.loss)
        self.lost = bool(state.get("lost"))
        self.weights = weights if self.step is not None else None
