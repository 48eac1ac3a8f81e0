"""A curriculum over sequence length: train on short sequences first, and on longer ones later."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from .adding import Adding
from .own_data import OwnData
from .task import Task, option

CURRICULUM_OPTIONS = ("task", "start", "until")


def _of_the_task(name: str) -> Any:
    """An attribute or a method that is the wrapped task's."""
    return property(attrgetter(f"task.{name}"))


@dataclass(frozen=True)
class Curriculum(Task):
    """Train on a task whose sequences grow. Update s of S uses sequences of the length

    ``start + ⌊(T - start) · min(1, s / (until · S))⌋``,

    where T is the length of the wrapped task. Validations and probes use the full length from the first update on.
    Sizes, loss, metric, baseline and the criterion for solved are those of the wrapped task. The length depends on the
    number of the update only, so a resumed run repeats the interrupted one.

    Args:
        task: a task with an option `length` on which its sizes do not depend.
        start: length at the first update, at most T.
        until: share of the updates after which the length is T, above 0 and at most 1.

    `make` takes the options of the wrapped task beside those of the curriculum:

        >>> task = make("curriculum", task="copy", length=200, start=20)
        >>> task == Curriculum(Copy(length=200), start=20)
        True
        >>> [task.at_step(step, 1000).length for step in (0, 250, 500, 750)]
        [20, 110, 200, 200]

    Reference: Bengio et al. 2009.
    """

    # The default is shared by all instances, which is safe because a task is frozen.
    task: Task = option(Adding(), "the task to grow, by name; its options stand beside these")  # noqa: RUF009
    start: int = option(10, "length at the first update", whole=1)
    until: float = option(0.5, "share of the updates after which the task has its full length", above=0, most=1)

    name = "curriculum"
    problem = _of_the_task("problem")
    readout = _of_the_task("readout")
    vocabulary = _of_the_task("vocabulary")
    input_size = _of_the_task("input_size")
    output_size = _of_the_task("output_size")
    metric_name = _of_the_task("metric_name")
    higher_is_better = _of_the_task("higher_is_better")
    baseline = _of_the_task("baseline")
    batch = _of_the_task("batch")
    loss = _of_the_task("loss")
    metric = _of_the_task("metric")
    weight = _of_the_task("weight")
    summary = _of_the_task("summary")
    solved_limit = _of_the_task("solved_limit")
    limit_excluded = _of_the_task("limit_excluded")
    criterion = _of_the_task("criterion")
    solved = _of_the_task("solved")
    held_out = _of_the_task("held_out")
    test = _of_the_task("test")

    def __post_init__(self) -> None:
        if not isinstance(self.task, Task):
            raise ValueError(f"task must be a task, such as Adding(length=200), got {self.task!r}")
        if isinstance(self.task, OwnData):
            # The pieces of a series move with their length: training pieces would overlap with validation pieces.
            raise ValueError(f"task must hold out the same sequences at every length, got {self.task.name}")
        full = self._full
        if not full:
            raise ValueError(f"task must have a length that can grow, got {self.task.name}")
        super().__post_init__()
        if self.start > full:
            raise ValueError(f"start must be at most the length of task {self.task.name}, {full}, got {self.start}")
        try:
            short = self._with_length(self.start)
        except ValueError as error:
            raise ValueError(f"start must be a length that task {self.task.name} can have: {error}") from None
        if _sizes(short) != _sizes(self.task):
            raise ValueError(f"task must keep its sizes at every length, got {self.task.name}")

    def at_step(self, step: int, steps: int) -> Task:
        grown = int((self._full - self.start) * min(1.0, step / (self.until * steps)))
        return self._with_length(self.start + grown).at_step(step, steps)

    @property
    def _full(self) -> int:
        """The length T of the wrapped task, or 0 if it has no length."""
        return getattr(self.task, "length", 0)

    def _with_length(self, length: int) -> Task:
        return dataclasses.replace(self.task, length=length)  # type: ignore[type-var]

    def options(self) -> dict[str, Any]:
        return {"task": self.task.reference, **self.task.options(), "start": self.start, "until": self.until}


def _sizes(task: Task) -> tuple[int | None, ...]:
    return task.vocabulary, task.input_size, task.output_size
