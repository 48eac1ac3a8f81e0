"""A curriculum over sequence length: another task, short at first and growing to its full length."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from evenflow.checks import unknown, whole_number

from .adding import Adding
from .own_data import OwnData
from .task import Batch, Task, option, option_fields

OWN = ("task", "start", "until")


@dataclass(frozen=True)
class Curriculum(Task):
    """Trains on short sequences first: update s of S draws from the task at length

    ``start + ⌊(T - start) · min(1, s / (until · S))⌋``.

    T is the length of the task itself. Validations and probes look at the task at full length from the first step on,
    and sizes, loss, metric, baseline and the criterion for solved are the task's own. The length follows from the
    update's number alone, so that a resumed run repeats the interrupted one.

    Args:
        task: any task with a length that its sizes do not depend on.
        start: length at the first update, at most T.
        until: share of the updates after which the length is T, above 0 and at most 1.

    By name, the options of the wrapped task stand beside the curriculum's own:

        >>> task = make("curriculum", task="copy", length=200, start=20)
        >>> task == Curriculum(Copy(length=200), start=20)
        True
        >>> [task.at_step(step, 1000).length for step in (0, 250, 500, 750)]
        [20, 110, 200, 200]

    Reference: Bengio et al. 2009.
    """

    # A frozen task may be shared as a default.
    task: Task = option(Adding(), "the task to grow, by name; its options stand beside these")  # noqa: RUF009
    start: int = option(10, "length at the first update")
    until: float = option(0.5, "share of the updates after which the task has its full length")

    name: ClassVar[str] = "curriculum"

    def __post_init__(self) -> None:
        if not isinstance(self.task, Task):
            raise ValueError(f"task must be a task, such as Adding(length=200), got {self.task!r}")
        if isinstance(self.task, OwnData):
            # Pieces of another length are divided elsewhere: what is validated on would have been trained on.
            raise ValueError(f"task must hold out the same sequences at every length, got {self.task.name}")
        full = self._full
        if not full:
            raise ValueError(f"task must have a length that can grow, got {self.task.name}")
        whole_number("start", self.start, 1)
        if self.start > full:
            raise ValueError(f"start must be at most the length of task {self.task.name}, {full}, got {self.start}")
        if isinstance(self.until, bool) or not isinstance(self.until, int | float) or not 0 < self.until <= 1:
            raise ValueError(f"until must be a number above 0 and at most 1, got {self.until!r}")
        try:
            short = self._with_length(self.start)
        except ValueError as error:
            raise ValueError(f"start must be a length that task {self.task.name} can have: {error}") from None
        if _sizes(short) != _sizes(self.task):
            raise ValueError(f"task must keep its sizes at every length, got {self.task.name}")

    def at_step(self, step: int, steps: int) -> Task:
        grown = int((self._full - self.start) * min(1.0, step / (self.until * steps)))
        return self._with_length(self.start + grown).at_step(step, steps)

    def held_out(self) -> Task:
        return self.task.held_out()

    def test(self) -> Task | None:
        return self.task.test()

    @property
    def _full(self) -> int:
        """T, or 0 for a task that has no length."""
        return getattr(self.task, "length", 0)

    def _with_length(self, length: int) -> Task:
        return dataclasses.replace(self.task, length=length)  # type: ignore[type-var]

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Task:
        from .registry import TASKS, make

        word = options.get("task", Adding.name)
        if not isinstance(word, str) or word not in TASKS or word == cls.name:
            raise ValueError(unknown("task of a curriculum", word, (name for name in TASKS if name != cls.name)))
        inner = [field.name for field in option_fields(TASKS[word])]
        for name in options:
            if name not in (*OWN, *inner):
                raise ValueError(unknown(f"option of task {cls.name} of {word}", name, [*OWN, *inner]))
        own = {name: options[name] for name in OWN if name in options and name != "task"}
        return cls(make(word, **{name: options[name] for name in options if name not in OWN}), **own)

    def options(self) -> dict[str, Any]:
        return {"task": self.task.name, **self.task.options(), "start": self.start, "until": self.until}

    @property
    def readout(self) -> str:  # type: ignore[override]
        return self.task.readout

    @property
    def vocabulary(self) -> int | None:
        return self.task.vocabulary

    @property
    def input_size(self) -> int:
        return self.task.input_size

    @property
    def output_size(self) -> int:
        return self.task.output_size

    @property
    def metric_name(self) -> str:
        return self.task.metric_name

    @property
    def higher_is_better(self) -> bool:
        return self.task.higher_is_better

    @property
    def baseline(self) -> float:
        return self.task.baseline

    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> Batch:
        """A batch at full length."""
        return self.task.batch(size, generator, device)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.task.loss(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.task.metric(outputs, targets)

    def weight(self, batch: Batch) -> int | Tensor:
        return self.task.weight(batch)

    def summary(self, metric: float) -> float:
        return self.task.summary(metric)

    def solved(self, metric: float) -> bool:
        return self.task.solved(metric)


def _sizes(task: Task) -> tuple[int | None, ...]:
    return task.vocabulary, task.input_size, task.output_size
