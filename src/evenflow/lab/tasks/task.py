"""The interface of a task: batches to train on, a loss, a metric, a baseline and a criterion for solved.

The file is past 300 lines because it is one interface, with the meaning of each member beside it.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from evenflow.checks import number, one_of, unknown, whole_number
from evenflow.models.data_schema import DataColumn, DataSchema
from evenflow.runtime.import_path import import_path


class Batch(NamedTuple):
    """One batch of sequences, time first.

    Shapes:
        inputs: ``(T, B, I)`` float, or ``(T, B)`` int64 for a task with a vocabulary.
        targets: ``(B, ...)`` for readout "last", ``(T, B, ...)`` for readout "every".
        lengths: ``(B,)`` int64, or None if every sequence has T steps. Steps past a sequence's length are zero.

    >>> inputs, targets, lengths = Adding(length=20).batch(8, torch.Generator().manual_seed(0))
    >>> inputs.shape, targets.shape, lengths
    (torch.Size([20, 8, 2]), torch.Size([8, 1]), None)
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor | None = None

    @property
    def carried(self) -> bool:
        """Whether these sequences continue those of the batch before, so that the state is carried over."""
        return False


class CarriedBatch(Batch):
    """A batch whose sequences continue those of the batch before."""

    @property
    def carried(self) -> bool:
        return True


class Position(NamedTuple):
    """The place of a batch in a run: update `step` of `steps`, in process `rank` of `processes`.

    `seed` is the same in all processes and at all steps of a run. The order of a data set is derived from it.

    >>> Position(step=1, steps=100).seed
    0
    """

    step: int
    steps: int
    seed: int = 0
    rank: int = 0
    processes: int = 1


class _ClassName:
    """A class attribute: the name of the class in lower case."""

    def __get__(self, instance: object, kind: type) -> str:
        return kind.__name__.lower()


class Task(ABC):
    """A problem to train on. A subclass is a frozen dataclass whose fields are the options of the task.

    The batch of update s comes from ``task.at_step(s, steps)``; validations and probes use ``task.held_out()``. Both
    return the task itself by default: a curriculum overrides the first, a data set the second. A data set (`DataSet`)
    is also trained on in epochs, validated on the whole of its validation part, and may have a test part.

    Attributes:
        name: the task's name in messages and, for the tasks of evenflow, the name that `make` takes. Default: that of
            the class in lower case.
        problem: what the outputs are: "classification", "multilabel", "regression" or "next", as in `DataSchema`.
        readout: "last" if the output is read after the last step, "every" if at every step.
        carries: whether a batch may continue the batch before.
        note: what a reader of results should know about the data; may be empty.
        metric_name, higher_is_better: what `metric` measures, and whether a larger value is better.
        solved_limit, limit_excluded: the metric that counts as solved, and whether it must be better than that.
        vocabulary: number of symbols if the inputs are indices, None if they are vectors. With a vocabulary,
            input_size is the width of the embedding.

    >>> task = make("adding", length=200)
    >>> task.readout, task.metric_name, task.criterion
    ('last', 'mse', 'Solved means a validation mse below 0.001.')
    """

    name: ClassVar[str] = _ClassName()  # type: ignore[assignment]
    problem: ClassVar[str] = "regression"
    readout: ClassVar[str]
    carries: ClassVar[bool] = False
    note: ClassVar[str] = ""
    limit_excluded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def reference(self) -> str:
        """What `make` makes this task of: its name, or the import path of a class that is not of evenflow."""
        kind = type(self)
        return self.name if kind.__module__.partition(".")[0] == "evenflow" else import_path(kind)

    @property
    def vocabulary(self) -> int | None:
        """Number of symbols if the inputs are indices, None if they are vectors."""
        return None

    @property
    def column_embeddings(self) -> tuple[tuple[int, int, int], ...]:
        """The columns of the inputs that are positions of categories, as `SequenceModel` takes them."""
        return ()

    @property
    @abstractmethod
    def input_size(self) -> int:
        """Width I of one input of the layer; columns with an embedding count as its vectors."""

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
        """Whether a larger metric is better."""

    @property
    @abstractmethod
    def baseline(self) -> float:
        """The lowest loss that a model without memory of earlier inputs can reach."""

    @abstractmethod
    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> Batch:
        """Draw a batch of `size` sequences on the generator's device, and move it to `device` if that is given.

        A finite data set draws without replacement, so a batch has at most as many sequences as the data set.
        """

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The scalar to minimise, a mean over the batch."""

    @abstractmethod
    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The scalar to judge a model by, a mean over the batch."""

    def schema(self) -> DataSchema:
        """What the inputs are and what the outputs mean; a run saves it, so that its model can predict."""
        inputs = tuple(DataColumn(f"x{i}") for i in range(1 if self.vocabulary is not None else self.input_size))
        if self.problem == "classification":
            targets: tuple[DataColumn, ...] = (
                DataColumn("target", "category", categories=tuple(range(self.output_size))),
            )
        else:
            targets = tuple(DataColumn(f"y{i}") for i in range(self.output_size))
        return DataSchema(self.problem, self.readout, inputs, targets, self.vocabulary)

    @property
    def loss_unit(self) -> float:
        """The reported loss is the minimised one times this: the variance of a target that training scales."""
        return 1.0

    @property
    @abstractmethod
    def solved_limit(self) -> float | None:
        """The metric from which on the task counts as solved; None if nothing does."""

    @property
    def criterion(self) -> str:
        """What counts as solved, as a sentence.

        >>> make("copy").criterion
        'Solved means a validation accuracy of at least 0.99.'
        """
        if self.solved_limit is None:
            return f"No {self.metric_name} counts as solved."
        words = {True: ("of at least", "above"), False: ("of at most", "below")}[self.higher_is_better]
        return f"Solved means a validation {self.metric_name} {words[self.limit_excluded]} {self.solved_limit:.4g}."

    def solved(self, metric: float) -> bool:
        """Whether a model with this metric on held-out sequences has solved the task."""
        if self.solved_limit is None:
            return False
        if metric == self.solved_limit:
            return not self.limit_excluded
        return metric > self.solved_limit if self.higher_is_better else metric < self.solved_limit

    def at_step(self, step: int, steps: int) -> Task:
        """The task to train on at update `step` of `steps`, counted from 0. Its sizes and loss are those of this task.

        It may depend on these two numbers only, so that a resumed run repeats the interrupted one.
        """
        return self

    def held_out(self) -> Task:
        """The task with sequences that are never trained on; the task itself if every sequence is drawn anew."""
        return self

    def test(self) -> Task | None:
        """The task with sequences for a final test of the best weights, or None if it has none."""
        return None

    def training_batch(self, size: int, position: Position, generator: torch.Generator) -> Batch:
        """The batch of one update in one process."""
        return self.at_step(position.step, position.steps).batch(size, generator)

    def epoch_steps(self, size: int, processes: int = 1) -> int | None:
        """Updates in one pass over the training sequences, or None if there is no end of them."""
        return None

    def every_batch(self, size: int, position: Position, device: torch.device) -> Iterator[Batch] | None:
        """This process's share of all sequences, in batches of at most `size`, or None if there is no end of them."""
        return None

    def weight(self, batch: Batch) -> int | Tensor:
        """The number of targets that the loss of a batch is a mean of: its weight in a mean over batches."""
        return batch.inputs.shape[1]

    def summary(self, metric: float) -> float:
        """The metric of many batches, given the weighted mean of their metrics. Perplexity, for example, is no mean."""
        return metric

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Task:
        """Make the task from the options that `options` returns.

        Raises:
            ValueError: an option is unknown.
        """
        names = [field.name for field in option_fields(cls)]
        for option in options:
            if option not in names:
                raise ValueError(unknown(f"option of task {cls.name}", option, names))
        try:
            return cls(**options)
        except TypeError as error:  # an abstract class
            raise ValueError(f"task {cls.name} cannot be made: {error}") from None

    def __str__(self) -> str:
        return self.name

    def options(self) -> dict[str, Any]:
        """The options of this task, as `make` takes them, without those that are None."""
        values = {field.name: getattr(self, field.name) for field in option_fields(type(self))}
        return {name: value for name, value in values.items() if value is not None}


def option(default: Any, help: str, *, whole: int | None = None, choices: Iterable[str] = (), **limits: float) -> Any:
    """A dataclass field with a default and a help text, which is stored in ``field.metadata["help"]``.

    Args:
        default: None means that None is allowed, besides what follows.
        help: what the option says, for the command line and for docstrings.
        whole: the option is a whole number of at least this.
        choices: the option is one of these words.
        limits: the option is a number within these limits of `checks.number`, such as ``above=0``.

    >>> from dataclasses import dataclass, fields
    >>> @dataclass(frozen=True)
    ... class Settings:
    ...     length: int = option(30, "steps of a sequence", whole=1)
    >>> fields(Settings)[0].metadata["help"]
    'steps of a sequence'
    """
    rules = {"help": help, "whole": whole, "choices": tuple(choices), "limits": limits}
    return dataclasses.field(default=default, metadata=rules)


def check_options(options: Any) -> None:
    """Raise a ValueError that names the first field of a dataclass whose value its `option` does not allow."""
    for field in dataclasses.fields(options):
        value, rules = getattr(options, field.name), field.metadata
        if value is None and field.default is None:
            continue
        if isinstance(field.default, bool) and not isinstance(value, bool):
            raise ValueError(f"{field.name} must be true or false, got {value!r}")
        if rules.get("whole") is not None:
            whole_number(field.name, value, rules["whole"])
        if rules.get("choices"):
            one_of(field.name, value, rules["choices"])
        if rules.get("limits"):
            number(field.name, value, **rules["limits"])


def option_fields(kind: type[Task]) -> list[dataclasses.Field[Any]]:
    """The fields of a task that are options."""
    if any(isinstance(value, dataclasses.Field) for value in vars(kind).values()):
        raise ValueError(f"the class of task {kind.name} has options and must be decorated: @dataclass(frozen=True)")
    return [field for field in dataclasses.fields(kind) if field.init] if dataclasses.is_dataclass(kind) else []


def move(batch: Batch, device: torch.device | str | None) -> Batch:
    """The batch on `device`; None leaves it where it is."""
    if device is None:
        return batch
    lengths = None if batch.lengths is None else batch.lengths.to(device)
    return type(batch)(batch.inputs.to(device), batch.targets.to(device), lengths)
