"""The updates and validations of several runs whose models run as one population."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.lab.tasks import Batch, Task
from evenflow.lab.tasks.ragged import RaggedData
from evenflow.models.population import Population
from evenflow.models.sequence_model import SequenceModel
from evenflow.runtime.cuda_graphs import run_branches

from . import evaluation
from .captured_update import CapturedUpdate
from .loop import Loop
from .method import GradientMethod, UpdateResult, optional


class PopulationStep:
    """One update of every loop in a single pass of their population; on a GPU the whole update is captured."""

    def __init__(self, loops: Sequence[Loop]) -> None:
        self.loops = loops
        self.population = Population([cast(SequenceModel, loop.model) for loop in loops])
        self._methods = [cast(GradientMethod, loop.method) for loop in loops]
        self._noise = [torch.Generator(loop.fabric.device) for loop in loops]
        capturable = all(method.capturable for method in self._methods)
        self._captured = CapturedUpdate(self._work, self.population, self._noise) if capturable else None
        self._sums = [total for loop in loops for total in loop.log.sums]
        # Runs that differ in their learning rate alone read the same batches: each batch is drawn once.
        sources: dict[str, int] = {}
        keys = [repr((loop.task.name, loop.task.options(), loop.settings.seed, loop.step)) for loop in loops]
        self._source = tuple(sources.setdefault(key, len(sources)) for key in keys)  # by loop: the batch it reads
        self._drawing = [loops[self._source.index(i)] for i in range(len(sources))]

    def update(self) -> None:
        """Update the weights of every loop once."""
        for loop, generator in zip(self.loops, self._noise, strict=True):
            generator.manual_seed(loop.noise_seed())
        batches = self._next_batches()
        states = _stack(
            [loop.state if batches[i].carried else None for loop, i in zip(self.loops, self._source, strict=True)]
        )
        for loop, method in zip(self.loops, self._methods, strict=True):
            method.set_lr(loop.next_lr_factor())
        lengths = () if batches[0].lengths is None else [cast(Tensor, batch.lengths) for batch in batches]
        tensors = ([batch.inputs for batch in batches], [batch.targets for batch in batches], lengths)
        run = self._work if self._captured is None else self._captured
        with ExitStack() as stack:
            for loop in self.loops:
                stack.enter_context(loop.fits())
            results = run(tuple(map(type, batches)), *tensors, () if states is None else states)
        torch._foreach_add_(self._sums, [number for result in results for number in (result.loss, result.norm)])
        for loop, result in zip(self.loops, results, strict=True):
            loop.count_update(result.state)

    def _next_batches(self) -> list[Batch]:
        """The batches of an update; ragged batches are all padded to the longest."""
        batches = [loop.next_batch() for loop in self._drawing]
        task, steps = self.loops[0].task, {len(batch.inputs) for batch in batches}
        if len(steps) == 1 or not isinstance(task, RaggedData):
            return batches
        # So there is one graph for each length, and not for each mixture of lengths.
        return [task.lengthened(batch, max(steps)) for batch in batches]

    def _work(
        self,
        kinds: Sequence[type[Batch]],
        inputs: Sequence[Tensor],
        targets: Sequence[Tensor],
        lengths: Sequence[Tensor],
        state: Any,
    ) -> list[UpdateResult]:
        ends: Sequence[Tensor | None] = lengths or [None] * len(inputs)
        drawn = [kind(x, y, end) for kind, x, y, end in zip(kinds, inputs, targets, ends, strict=True)]
        batches = [drawn[i] for i in self._source]
        tasks = [loop.task for loop in self.loops]
        for method in self._methods:
            method.optimizer.zero_grad()  # a failed capture may have left gradients
        with self.loops[0].fabric.autocast():
            outputs, after = _answer(self.population.train(), batches, optional(state), tasks, self._noise)
            answers = zip(tasks, outputs, batches, strict=True)
            losses = torch.stack([task.loss(output, batch.targets) for task, output, batch in answers])
            total = torch.stack([method.penalized(loss) for method, loss in zip(self._methods, losses, strict=True)])
        total.sum().backward()
        after = evaluation.detach_state(after)
        work = [partial(method.apply, losses[i].detach(), _part(after, i)) for i, method in enumerate(self._methods)]
        return run_branches(work)


@torch.no_grad()
def validate(population: Population, loops: Sequence[Loop]) -> list[tuple[float, float] | None]:
    """Validation loss and metric of every loop."""
    population.eval()
    tasks = [loop.task.held_out() for loop in loops]
    total, state = torch.zeros(len(loops), 3, device=loops[0].fabric.device), None
    for batches in zip(*(loop.evaluator.validation_batches() for loop in loops), strict=True):
        with loops[0].fabric.autocast():
            outputs, state = _answer(population, batches, state if batches[0].carried else None, tasks)
            rows = []
            for task, output, batch in zip(tasks, outputs, batches, strict=True):
                loss, metric = task.loss(output, batch.targets), task.metric(output, batch.targets)
                weight = torch.as_tensor(task.weight(batch), dtype=total.dtype, device=total.device)
                rows.append(weight * torch.stack((loss, metric, torch.ones_like(loss))).to(total))
        total += torch.stack(rows)
    population.train()
    return [
        (task.loss_unit * loss / weight, task.summary(metric / weight))
        for task, (loss, metric, weight) in zip(tasks, total.tolist(), strict=True)
    ]


def _answer(
    population: Population,
    batches: Sequence[Batch],
    state: Any,
    tasks: Sequence[Task],
    generators: Sequence[torch.Generator] | None = None,
) -> tuple[list[Tensor], Any]:
    """The outputs of each model for its batch; shorter batches are padded for the pass."""
    steps = [len(batch.inputs) for batch in batches]
    longest = max(steps)
    dtype = next(population.parameters()).dtype
    padded = [
        F.pad(batch.inputs, (0, 0) * (batch.inputs.dim() - 1) + (0, longest - len(batch.inputs))) for batch in batches
    ]
    inputs = torch.stack(padded)
    lengths = None if batches[0].lengths is None else torch.stack([cast(Tensor, batch.lengths) for batch in batches])
    numbers = inputs.to(dtype) if inputs.is_floating_point() else inputs
    outputs, ends = population(numbers, state, lengths, generators=generators)
    every = tasks[0].readout == "every"
    if outputs.dtype == torch.bfloat16:  # too coarse for a loss; Fabric converts too, for a run alone
        outputs = outputs.float()
    return [output[:end] if every else output for output, end in zip(outputs, steps, strict=True)], ends


def _stack(states: Sequence[Any]) -> Any:
    if states[0] is None:
        return None
    if isinstance(states[0], tuple):
        return tuple(torch.stack(member) for member in zip(*states, strict=True))
    return torch.stack(list(states))


def _part(states: Any, i: int) -> Any:
    return tuple(member[i] for member in states) if isinstance(states, tuple) else states[i]
