"""What a run of a recipe left behind: its metrics, its weights, and what is computed from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from evenflow.bounds import gradient_band
from evenflow.lab.tasks import Batch, Position, Task
from evenflow.lab.tasks.written_text import WrittenText
from evenflow.lab.training import Run, build, checkpoint, evaluation
from evenflow.models.generation import generate
from evenflow.probes import jacobian_norms, temporal_components

from .configs import RecipeJob

BATCH = 256  # sequences in a batch of an evaluation
JACOBIANS = 20  # sequences of figure 4 of the urnn document, one Jacobian each
COMPONENT_SEQUENCES = 100
WORDS = 46  # length of a generated sentence, as in the document

CONVERGED = 0.1  # a loss below this share of the memoryless baseline, "considerably" less in the sgornn document

NAN = float("nan")


@dataclass(frozen=True)
class FigureLine:
    """One line of a figure: x and y, and the levels drawn beside it."""

    x: np.ndarray
    y: np.ndarray
    levels: list[float]


class RunData:
    """A job of a recipe and its results. Without a run folder the model has its starting weights.

    Args:
        job: the row, seed and learning rate.
        task: the job's task.
        folder: the run folder, or None if nothing was trained.
        lines: lines of figures that a record kept; they replace those of the run.
    """

    def __init__(
        self, job: RecipeJob, task: Task, folder: Path | None, lines: Mapping[str, FigureLine] | None = None
    ) -> None:
        self.job, self.task, self.lines = job, task, lines
        self.run = None if folder is None else Run(folder)

    @property
    def status(self) -> dict[str, Any]:
        return {} if self.run is None else self.run.status

    def probe(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Updates (K,) and one of the arrays (K, ...) of probes.npz, or None if it was not recorded."""
        return None if self.run is None else self.run.probe(name)

    def curve(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Updates and values of a column of metrics.csv."""
        return (np.zeros(0), np.zeros(0)) if self.run is None else self.run.curve(name)

    def last(self, name: str) -> float:
        """The last value of a column; nan if there is none."""
        return NAN if self.run is None else self.run.last(name)

    def best(self, name: str) -> float:
        """The best value of a column; whether a higher metric is better depends on the task."""
        return NAN if self.run is None else self.run.best(name, name == "valid_metric" and self.task.higher_is_better)

    @property
    def trained(self) -> bool:
        return self.run is not None

    @property
    def diverged(self) -> bool:
        return self.run is not None and self.run.diverged

    @property
    def solved(self) -> bool:
        return not self.diverged and self.task.solved(self.best("valid_metric"))

    @property
    def converged(self) -> bool:
        """Whether a validation solved the task or had a loss below a tenth of the memoryless baseline."""
        return self.solved or (not self.diverged and self.best("valid_loss") < CONVERGED * self.task.baseline)

    def initial_model(self) -> nn.Module:
        """The model with its starting weights."""
        return build(self.task, self.job.config["system"], self.job.seed)

    @cached_property
    def model(self) -> Any:
        """The model with the weights of the best validation, or the starting weights if nothing was trained."""
        model = self.initial_model()
        if self.run is not None:
            which = "last" if self.diverged else "best"
            checkpoint.load_weights(model, self.run.weights(which), str(self.run.folder))
        return model.eval()

    def batches(self, part: Task | None) -> Iterator[Batch]:
        """Every sequence of a part of a data set once, with the state carried from batch to batch if the task does."""
        batches = None if part is None else part.every_batch(BATCH, Position(0, 1), torch.device("cpu"))
        return iter(()) if batches is None else iter(batches)

    def score(self, part: Task | None) -> tuple[float, float]:
        """Loss and metric over a part of the data; nan if there is none."""
        total = evaluation.sums(self.model, self.task, self.batches(part), torch.device("cpu"))
        self.model.eval()
        if not total[2]:
            return NAN, NAN
        loss, metric = (total[:2] / total[2]).tolist()
        return loss, self.task.summary(metric)

    @cached_property
    def generalization_gap(self) -> tuple[float, float]:
        """Training minus test metric, and test minus training loss, of the last weights.

        The validation part stands for the test part where a task has none.
        """
        if self.run is None:
            return NAN, NAN
        best = {name: value.clone() for name, value in self.model.state_dict().items()}
        checkpoint.load_weights(self.model, self.run.weights("last"), str(self.run.folder))
        (train_loss, train), (test_loss, test) = (
            self.score(self.task),
            self.score(self.task.test() or self.task.held_out()),
        )
        checkpoint.load_weights(self.model, best, str(self.run.folder))
        return train - test, test_loss - train_loss

    @torch.no_grad()
    def accuracy(self) -> float:
        """Share of the symbols of the test part that the model finds most likely."""
        right = count = 0
        state = None
        for batch in self.batches(self.task.test()):
            outputs, state = evaluation.answer(self.model, batch, state)
            scored = batch.targets >= 0
            right += int(((outputs.argmax(-1) == batch.targets) & scored).sum())
            count += int(scored.sum())
        return right / count if count else NAN

    @cached_property
    def jacobian_norms(self) -> np.ndarray:
        """``‖∂h_T/∂h_1‖_F`` of 20 sequences."""
        x = self.task.held_out().batch(JACOBIANS, torch.Generator().manual_seed(self.job.seed)).inputs
        embedding = getattr(self.model, "embedding", None)
        if embedding is not None:
            x = embedding(x).detach()
        return jacobian_norms(self.model.layer, x, k=[0]).frobenius[0]

    @cached_property
    def jacobian_bounds(self) -> list[float]:
        """Lower and upper bound of those norms; empty for a cell without such bounds."""
        steps = len(self.task.held_out().batch(1, torch.Generator().manual_seed(0)).inputs)
        try:
            band = gradient_band(self.model, lag=steps - 1)
        except ValueError:
            return []
        return [band.lower, band.upper]

    @cached_property
    def component_norms(self) -> np.ndarray:
        """The norms ``(T,)`` of the temporal components of the gradient on a hundred sequences."""
        batch = self.task.batch(COMPONENT_SEQUENCES, torch.Generator().manual_seed(self.job.seed))
        components = temporal_components(self.model, batch.inputs, batch.targets, self.task.loss, batch.lengths)
        return components.norms.detach().double().numpy()

    def sentence(self) -> str:
        """The sentence that the model generates from the word "this", always with the most likely next word."""
        assert isinstance(self.task, WrittenText)
        start = self.task.read("this")
        following = generate(self.model, start, WORDS - 1, greedy=True)
        text = self.task.write([*start.tolist(), *following.tolist()]).split()
        return " ".join(text[: text.index("<eos>")] if "<eos>" in text else text)
