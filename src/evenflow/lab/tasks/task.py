"""What every task is: batches, a loss, a metric, a baseline and a criterion for solved."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from evenflow.checks import unknown


class Batch(NamedTuple):
    """One batch of sequences, time first.

    Shapes:
        inputs: ``(T, B, I)`` float, or ``(T, B)`` int64 for a task with a vocabulary.
        targets: ``(B, ...)`` for readout "last", ``(T, B, ...)`` for readout "every".
        lengths: ``(B,)`` int64, or None where every sequence has T steps; steps past the length are zero.
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor | None = None

    @property
    def carried(self) -> bool:
        """Whether these sequences go on where those of the batch before ended, so that the state is kept."""
        return False


class CarriedBatch(Batch):
    """A batch that goes on where the one before ended."""

    @property
    def carried(self) -> bool:
        return True


class Position(NamedTuple):
    """Where in a run a batch is drawn: update `step` of `steps`, by process `rank` of `processes`.

    `seed` is the same in all processes and at all steps of a run: what a shuffled pass over a data set derives from.
    """

    step: int
    steps: int
    seed: int = 0
    rank: int = 0
    processes: int = 1


class Task(ABC):
    """A problem to train on. A subclass is a frozen dataclass whose fields are the task's options.

    Training draws the batch of update s from ``task.at_step(s, steps)``, and everything it judges by (validations,
    probes) from ``task.held_out()``. Both are the task itself unless it says otherwise: a curriculum is easier at the
    start, a data set keeps some sequences back. A data set (`DataSet`) is also passed over in epochs, validated whole,
    and may have a part for one last test.

    Attributes:
        name: the word that `make` knows it by.
        readout: "last" if the answer is read after the last step, "every" if at every step.
        carries: whether batches may go on where the one before ended.
        note: what everyone who sees a result should know about the data; empty where there is nothing to know.
        metric_name, higher_is_better: what `metric` measures, and which way is better.
        vocabulary: number of symbols when inputs are indices, None when they are vectors. With a vocabulary,
            input_size is the width of the embedding.
    """

    name: ClassVar[str]
    readout: ClassVar[str]
    carries: ClassVar[bool] = False
    note: ClassVar[str] = ""

    @property
    def vocabulary(self) -> int | None:
        """Number of symbols when inputs are indices, None when they are vectors."""
        return None

    @property
    @abstractmethod
    def input_size(self) -> int:
        """Width I of one input."""

    @property
    @abstractmethod
    def output_size(self) -> int:
        """Width O of one output."""

    @property
    @abstractmethod
    def metric_name(self) -> str:
        """What `metric` measures, in one word."""

    @property
    @abstractmethod
    def higher_is_better(self) -> bool:
        """Whether a larger metric is a better one."""

    @property
    @abstractmethod
    def baseline(self) -> float:
        """The loss of the best guesser that remembers nothing of the input."""

    @abstractmethod
    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> Batch:
        """A batch of `size` sequences, drawn on the generator's device and then moved to `device` if that differs.

        A finite data set gives no sequence twice in a batch, so at most as many as it has.
        """

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The scalar to minimise, a mean over the batch."""

    @abstractmethod
    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The scalar to judge by, a mean over the batch."""

    @abstractmethod
    def solved(self, metric: float) -> bool:
        """Whether a model with this metric on unseen sequences counts as having solved the task."""

    def at_step(self, step: int, steps: int) -> Task:
        """The task that update `step` of `steps`, counted from 0, is trained on; its sizes and loss are this task's.

        It must follow from the two numbers alone, so that a resumed run repeats the interrupted one.
        """
        return self

    def held_out(self) -> Task:
        """The task over sequences that training never sees; itself where every sequence is drawn afresh."""
        return self

    def test(self) -> Task | None:
        """The task over sequences kept for one last look with the best weights, or None where there are none."""
        return None

    def training_batch(self, size: int, position: Position, generator: torch.Generator) -> Batch:
        """The batch of one update of one process."""
        return self.at_step(position.step, position.steps).batch(size, generator)

    def epoch_steps(self, size: int, processes: int = 1) -> int | None:
        """Updates in one pass over the training sequences, or None where they never end."""
        return None

    def every_batch(self, size: int, position: Position, device: torch.device) -> Iterator[Batch] | None:
        """All sequences once, this process's share in batches of at most `size`, or None where they never end."""
        return None

    def weight(self, batch: Batch) -> int | Tensor:
        """How many answers the mean loss of a batch is over: its weight in a mean over several batches."""
        return batch.inputs.shape[1]

    def summary(self, metric: float) -> float:
        """The metric of many batches from the mean of theirs: perplexity, for one, is no mean of perplexities."""
        return metric

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Task:
        """The task with these options, as `options` gives them back; an unknown one is refused."""
        known = [field.name for field in option_fields(cls)]
        for option in options:
            if option not in known:
                raise ValueError(unknown(f"option of task {cls.name}", option, known))
        return cls(**options)

    def __str__(self) -> str:
        return self.name

    def options(self) -> dict[str, Any]:
        """The options this task was made with, as `make` takes them; those that are None are off and left out."""
        values = {field.name: getattr(self, field.name) for field in option_fields(type(self))}
        return {name: value for name, value in values.items() if value is not None}


def option(default: Any, help: str) -> Any:
    """A dataclass field with a default and a help text, found in ``field.metadata["help"]``."""
    return dataclasses.field(default=default, metadata={"help": help})


def option_fields(kind: type[Task]) -> list[dataclasses.Field[Any]]:
    """The fields of a task that are options."""
    return [field for field in dataclasses.fields(kind) if field.init] if dataclasses.is_dataclass(kind) else []


def move(batch: Batch, device: torch.device | str | None) -> Batch:
    """The batch on `device`; None leaves it where it was drawn."""
    if device is None:
        return batch
    lengths = None if batch.lengths is None else batch.lengths.to(device)
    return type(batch)(batch.inputs.to(device), batch.targets.to(device), lengths)
