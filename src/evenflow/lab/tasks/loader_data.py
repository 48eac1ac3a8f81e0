"""A task on the batches of a DataLoader, as they come."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from .chosen_loss import ChosenLoss
from .classification import PADDING
from .own_data import SOLVED_ACCURACY
from .ragged import inside
from .task import Batch, Position, Task, move


@dataclass(eq=False)
class LoaderBatches:
    """The batches of a DataLoader, one after the other, and again from the start where they end."""

    loader: DataLoader[Any]
    left: Iterator[Any] | None = None

    def next(self) -> Batch:
        """The next batch."""
        if self.left is not None and (item := next(self.left, None)) is not None:
            return loader_batch(item)
        self.left = iter(self.loader)
        return loader_batch(next(self.left, None))


def loader_batch(item: Any) -> Batch:
    """What a DataLoader yields, ``(x, y)`` or ``(x, y, lengths)`` with x ``(B, T, C)``, as a batch with time first."""
    parts = list(item) if isinstance(item, list | tuple) else []
    if len(parts) not in (2, 3) or not all(isinstance(part, Tensor) for part in parts):
        got = (
            "nothing" if item is None else f"a {type(item).__name__} of {len(parts)}" if parts else type(item).__name__
        )
        raise ValueError(f"a DataLoader must yield tensors (x, y) or (x, y, lengths), got {got}")
    x, y, lengths = parts[0], parts[1], parts[2] if len(parts) == 3 else None
    if x.dim() == 2:
        x = x[..., None]
    if x.dim() != 3 or len(y) != len(x):
        raise ValueError(
            f"a DataLoader must yield x of shape (B, T, C) and y of shape (B, ...), got {tuple(x.shape)} and "
            f"{tuple(y.shape)}"
        )
    whole = not y.is_floating_point()
    every = y.dim() >= 2 and y.shape[1] == x.shape[1] and (whole or y.dim() == 3)
    y = y.long() if whole else y.float()
    if not whole and y.dim() == 1:
        y = y[:, None]
    x, y = x.float().transpose(0, 1), y.transpose(0, 1) if every else y
    if lengths is not None and every:
        running = inside(lengths, len(x))
        y = torch.where(running if whole else running[..., None], y, PADDING if whole else math.nan)
    return Batch(x, y, lengths)


@dataclass(frozen=True)
class LoaderData(Task):
    """The batches of a DataLoader, with another one to validate on.

    Nothing is scaled. Whole targets are classes, other targets numbers, after the last step if y is ``(B,)`` or
    ``(B, O)``, at every step if it is ``(B, T)`` whole or ``(B, T, O)``. A run cannot be resumed, since a DataLoader
    does not give the same batches again.

    Args:
        batches: to train on.
        validation: what is validated on, in the order of that DataLoader.
        outputs: width of the model's output.
        chosen: the loss and the metric.
    """

    batches: LoaderBatches = field(repr=False)
    validation: DataLoader[Any] = field(repr=False)
    outputs: int
    chosen: ChosenLoss
    first: Batch = field(repr=False, compare=False)
    held: bool = False

    name = "loader"

    def __post_init__(self) -> None:
        self.chosen.check(self.problem)
        high = int(self.first.targets.max()) if self.problem == "classification" else 0
        if high >= self.outputs > 0:
            raise ValueError(f"the model must output a score for each class, it has {self.outputs}, got class {high}")

    def options(self) -> dict[str, Any]:
        return self.chosen.options()

    @property
    def problem(self) -> str:  # type: ignore[override]
        return "regression" if self.first.targets.is_floating_point() else "classification"

    @property
    def readout(self) -> str:  # type: ignore[override]
        widest = 3 if self.problem == "regression" else 2
        return "every" if self.first.targets.dim() == widest else "last"

    @property
    def input_size(self) -> int:
        return self.first.inputs.shape[2]

    @property
    def output_size(self) -> int:
        return self.outputs

    @property
    def metric_name(self) -> str:
        return self.chosen.metric_for(self.problem)[1]

    @property
    def higher_is_better(self) -> bool:
        return self.chosen.metric_for(self.problem)[2]

    @property
    def baseline(self) -> float:
        """Of the first batch: the loss of always answering the mean, or of guessing every class alike."""
        return math.log(self.outputs) if self.problem == "classification" else float(self.first.targets.var())

    def held_out(self) -> Task:
        return (
            self
            if self.held
            else LoaderData(
                LoaderBatches(self.validation), self.validation, self.outputs, self.chosen, self.first, held=True
            )
        )

    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> Batch:
        x, y, lengths = self.first
        targets = y[:, :size] if self.readout == "every" else y[:size]
        batch = Batch(x[:, :size], targets, None if lengths is None else lengths[:size])
        return move(batch, generator.device if device is None else device)

    def training_batch(self, size: int, position: Position, generator: torch.Generator) -> Batch:
        return move(self.batches.next(), generator.device)

    def epoch_steps(self, size: int, processes: int = 1) -> int | None:
        return len(self.batches.loader) if hasattr(self.batches.loader.dataset, "__len__") else None

    def every_batch(self, size: int, position: Position, device: torch.device) -> Iterator[Batch] | None:
        if not self.held:
            return None
        return (
            move(loader_batch(item), device)
            for item in islice(self.validation, position.rank, None, position.processes)
        )

    def weight(self, batch: Batch) -> int | Tensor:
        if self.readout == "last":
            return batch.inputs.shape[1]
        return batch.inputs.shape[0] * batch.inputs.shape[1] if batch.lengths is None else batch.lengths.sum()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.chosen.loss_for(self.problem)(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.chosen.metric_for(self.problem)[0](outputs, targets)

    def summary(self, metric: float) -> float:
        return math.sqrt(metric) if self.metric_name == "rmse" and not isinstance(self.chosen.metric, tuple) else metric

    @property
    def solved_limit(self) -> float | None:
        return SOLVED_ACCURACY if self.metric_name == "accuracy" and self.problem == "classification" else None
