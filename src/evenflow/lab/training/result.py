"""What a finished run hands back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from evenflow.lab.tasks import Task

from .metrics import Metrics


@dataclass(frozen=True)
class Result:
    """The outcome of a run. The model carries the weights of the last step; those of the best validation are beside.

    Attributes:
        model: the trained model.
        task: what it was trained on.
        steps: updates made.
        loss: mean training loss of the last row.
        valid_loss, valid_metric: of the last validation.
        best_step, best_loss, best_metric: of the best validation.
        test_loss, test_metric: of the best weights on the task's test part, nan where it has none.
        best_weights: the weights at `best_step`, for ``model.load_state_dict``.
        solved: whether the best validation solves the task.
        stopped_early: whether patience ran out, or the task was solved, before the last step.
        seconds: time spent training, over all sittings.
        history: the columns of metrics.csv as arrays.
        probes: `step` (K,), `gradient_norm` (K, T) and the other arrays of probes.npz, or None.
        folder: the run folder, or None.
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
