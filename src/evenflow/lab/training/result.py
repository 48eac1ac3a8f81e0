"""`Result`, what a run returns."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from evenflow.lab.tasks import Task
from evenflow.models.predictor import Predictor

from .checkpoint import load_weights
from .metrics import Metrics

if TYPE_CHECKING:
    from evenflow.figures import PrintFigure


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        model: the trained model, with the weights of the last step.
        task: the task it was trained on.
        steps: updates made.
        loss: mean training loss of the last row.
        valid_loss, valid_metric: of the last validation.
        best_step, best_loss, best_metric: of the best validation.
        test_loss, test_metric: of the best weights on the task's test part, nan where it has none.
        best_weights: the weights at `best_step`, for ``model.load_state_dict``.
        solved: whether the best validation solves the task.
        stopped_early: whether patience ran out, or the task was solved, before the last step.
        seconds: time spent training, in all sessions of a resumed run.
        history: the columns of metrics.csv as arrays.
        probes: `step` (K,), `gradient_norm` (K, T) and the other arrays of probes.npz, or None.
        folder: the run folder, or None.

    >>> result = fit(model, task, steps=20, progress=False)
    >>> result.steps, result.best_step, result.stopped_early
    (20, 20, False)
    """

    model: nn.Module = field(repr=False)
    task: Task = field(repr=False)
    steps: int
    loss: float
    valid_loss: float
    valid_metric: float
    best_step: int
    best_loss: float
    best_metric: float
    test_loss: float
    test_metric: float
    solved: bool
    stopped_early: bool
    seconds: float
    folder: Path | None
    history: Metrics = field(repr=False)
    probes: dict[str, np.ndarray] | None = field(repr=False)
    best_weights: dict[str, Tensor] | None = field(repr=False)

    def plot(self) -> PrintFigure:
        """The curves as a matplotlib figure, which a notebook shows; ``plot().savefig("run.pdf")`` writes it."""
        from .result_views import result_figure

        return result_figure(self)

    def _repr_html_(self) -> str:
        from .result_views import result_html

        return result_html(self)

    def predictor(self) -> Predictor:
        """A copy of the model with the best weights, which predicts in the user's units; `evenflow.save` writes it.

        >>> fit(model, task, epochs=20).predictor().predict(windows)
        """
        model: Any = copy.deepcopy(self.model).cpu()
        if self.best_weights is not None:
            load_weights(model, self.best_weights, "the best validation")
        return Predictor(model, self.task.schema())
