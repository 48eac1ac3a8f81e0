"""What a finished attempt left behind: its run, its weights, and what can be worked out from them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenflow.lab.tasks import Batch, Position, Task
from evenflow.lab.training import Run, build, checkpoint, evaluation

from .configs import Job
from .curves import CURVES, Line

BATCH = 256  # sequences at a time where nothing is learned
BATCHES = 20  # Jacobians of figure 4 of the urnn document: one sequence each
WORDS = 46  # of a generated sentence; the document's has 46


class Evidence:
    """A job and what it left behind; without a run folder it is the freshly drawn model.

    Args:
        job: the row, seed and learning rate.
        task: of the job.
        folder: the run folder, or None where nothing was trained.
    """

    def __init__(self, job: Job, task: Task, folder: Path | None) -> None:
        self.job, self.task = job, task
        self.run = None if folder is None else Run(folder)

    @cached_property
    def status(self) -> dict[str, Any]:
        return {} if self.run is None else self.run.status

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        if self.run is None:
            return {}
        return self.run.metrics

    @cached_property
    def probes(self) -> dict[str, np.ndarray] | None:
        return None if self.run is None else self.run.probes

    def probed(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Updates (K,) and one of the arrays (K, ...) of probes.npz, or None where it was not recorded."""
        if self.probes is None or name not in self.probes or not len(self.probes["step"]):
            return None
        return self.probes["step"], self.probes[name]

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Updates and values of a column of metrics.csv, where it was measured."""
        if not self.columns or name not in self.columns:
            return np.zeros(0), np.zeros(0)
        values = self.columns[name]
        measured = ~np.isnan(values)
        return self.columns["step"][measured], values[measured]

    def last(self, name: str) -> float:
        values = self.curve(name)[1]
        return float(values[-1]) if len(values) else float("nan")

    def best(self, name: str) -> float:
        """The best value of a column; of the metric, by the task's own direction."""
        values = self.curve(name)[1]
        values = values[np.isfinite(values)]
        if not len(values):
            return float("nan")
        higher = name == "valid_metric" and self.task.higher_is_better
        return float(values.max() if higher else values.min())

    def line(self, kind: str) -> Line:
        """x and y of one of the lines that figures draw, see `curves`."""
        return CURVES[kind].read(self)

    def levels(self, kind: str) -> list[float]:
        """The numbers that such a figure draws across."""
        return CURVES[kind].levels(self)

    @property
    def trained(self) -> bool:
        return self.run is not None

    @property
    def diverged(self) -> bool:
        return self.status.get("state") == "failed"

    def fresh(self) -> nn.Module:
        """The model with its starting weights."""
        return build(self.task, self.job.config["system"], self.job.seed)

    @cached_property
    def model(self) -> nn.Module:
        """The model with the weights of the best validation, or the starting ones where nothing was trained."""
        model = self.fresh()
        if self.run is not None:
            which = "last" if self.diverged else "best"
            checkpoint.load_weights(model, self.run.weights(which), str(self.run.folder))
        return model.eval()

    def batches(self, part: Task | None) -> Iterator[Batch]:
        """Every sequence of a part of a data set once, the state carried along where the task carries it."""
        found = None if part is None else part.every_batch(BATCH, Position(0, 1), torch.device("cpu"))
        return iter(()) if found is None else iter(found)

    def score(self, part: Task | None) -> tuple[float, float]:
        """Loss and metric over a part; nan where there is none."""
        total = evaluation.sums(self.model, self.task, self.batches(part), torch.device("cpu"))
        self.model.eval()
        if not total[2]:
            return float("nan"), float("nan")
        loss, metric = (total[:2] / total[2]).tolist()
        return loss, self.task.summary(metric)

    @cached_property
    def gap(self) -> tuple[float, float]:
        """Training minus test metric, and test minus training loss, by the last weights."""
        if self.run is None:
            return float("nan"), float("nan")
        self.model  # noqa: B018  built first, so that the weights below are put back
        best = {name: value.clone() for name, value in self.model.state_dict().items()}
        checkpoint.load_weights(self.model, self.run.weights("last"), str(self.run.folder))
        (train_loss, train), (test_loss, test) = self.score(self.task), self.score(self.task.test())
        checkpoint.load_weights(self.model, best, str(self.run.folder))
        return train - test, test_loss - train_loss

    @torch.no_grad()
    def accuracy(self) -> float:
        """The share of symbols of the test part that are the likeliest by the model."""
        right = asked = 0
        state = None
        for batch in self.batches(self.task.test()):
            outputs, state = evaluation.answer(self.model, batch, state)
            wanted = batch.targets >= 0
            right += int(((outputs.argmax(-1) == batch.targets) & wanted).sum())
            asked += int(wanted.sum())
        return right / asked if asked else float("nan")

    @cached_property
    def jacobian_norms(self) -> np.ndarray:
        """``‖∂h_T/∂h_1‖_F`` of some sequences, one after the other."""
        from evenflow.probes import jacobian_norms

        generator = torch.Generator().manual_seed(self.job.seed)
        batch = self.task.held_out().batch(BATCHES, generator)
        x: Tensor = batch.inputs
        embedding = getattr(self.model, "embedding", None)
        if embedding is not None:
            x = embedding(x).detach()
        layer: Any = self.model.layer
        return jacobian_norms(layer, x, k=[0]).frobenius[0]

    @cached_property
    def band(self) -> tuple[float, float] | None:
        """What theory allows for those norms, or None for a cell that has no such band."""
        try:
            from evenflow.bounds import gradient_band

            steps = len(self.task.held_out().batch(1, torch.Generator().manual_seed(0)).inputs)
            found = gradient_band(self.model, lag=steps - 1)
        except (ImportError, ValueError):
            return None
        return found.lower, found.upper

    @cached_property
    def temporal_norms(self) -> np.ndarray:
        """The norms ``(T,)`` of the temporal components on a hundred sequences."""
        from evenflow.probes import temporal_components

        batch = self.task.batch(100, torch.Generator().manual_seed(self.job.seed))
        model: Any = self.model
        found = temporal_components(model, batch.inputs, batch.targets, self.task.loss, batch.lengths)
        return found.norms.detach().double().numpy()

    def sentence(self) -> str:
        """What the model goes on with after "this", always the likeliest word, up to the end of the sentence."""
        from evenflow.lab.data.treebank_files import vocabulary
        from evenflow.models.generation import generate

        words = list(vocabulary(self.task.folder))  # type: ignore[attr-defined]
        model: Any = self.model
        start = words.index("this") if "this" in words else 0
        following = generate(model, torch.tensor([start]), WORDS - 1, greedy=True).tolist()
        text = [words[start], *(words[i] for i in following)]
        return " ".join(text[: text.index("<eos>")] if "<eos>" in text else text)
