"""The best validation of a run, and whether the run has seen enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from evenflow.lab.tasks import Task

from . import checkpoint
from .run_folder import RunWriter
from .settings import Settings

KEPT = ("step", "metric", "loss", "stale", "stopped", "awaited")


class Best:
    """The best of the validations so far, by the metric and, where that is equal, by the loss.

    Attributes:
        step, metric, loss, weights: of the best; None and nan before the first.
        stale: validations since.
        stopped: whether the run should end: it has solved the task and was to stop then, or patience ran out.
        awaited: the step of a later best that the run has seen before it was resumed; None if there is none.
    """

    def __init__(self, task: Task, settings: Settings, writer: RunWriter | None) -> None:
        self._task, self._settings, self._writer = task, settings, writer
        self.step: int | None = None
        self.metric = self.loss = math.nan
        self.weights: dict[str, Tensor] | None = None
        self.stale, self.stopped = 0, False
        self.awaited: int | None = None

    def judge(self, step: int, loss: float, metric: float, model: nn.Module) -> None:
        """Take a validation into account; weights that are better than all before are kept and saved."""
        sign = 1 if self._task.higher_is_better else -1
        better = self.step is None or (sign * metric, -loss) > (sign * self.metric, -self.loss)
        # The weights of a best before the awaited one may be gone, so that it counts even where rounding differs.
        if better or step == self.awaited:
            self.step, self.metric, self.loss, self.stale, self.awaited = step, metric, loss, 0, None
            self.weights = checkpoint.weights_of(model)
            if self._writer is not None:
                checkpoint.save_best(self._writer.checkpoints, self.weights, step)
        else:
            self.stale += 1
        patience = self._settings.patience
        solved = self._settings.stop_when_solved and self._task.solved(metric)
        # Before an awaited best there may be no weights to end with.
        self.stopped = solved or (patience is not None and self.stale >= patience and self.awaited is None)

    def state(self) -> dict[str, Any]:
        """All but the weights, which have a file of their own."""
        return {name: getattr(self, name) for name in KEPT}

    def restore(self, state: Mapping[str, Any], weights: dict[str, Tensor] | None) -> None:
        """Go back to a checkpoint.

        Weights of a later best are found again at the same step, so their file may run ahead of the checkpoint.
        """
        for name in KEPT:
            setattr(self, name, state.get(name))
        self.weights = weights if self.step is not None else None
