"""Many runs of models of one shape, side by side: each ends as it would alone, to rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.model import SequenceModel
from evenflow.population import Population
from evenflow.tasks import Batch, Task

from .fit import check_model
from .launch import check_device, launch
from .lifecycle import Folder, begun, check_same, conclude, note
from .loop import Loop, NonFiniteLoss
from .methods import GradientMethod
from .optimizers import OPTIMIZERS
from .progress import ProgressBar
from .result import Result
from .run_folder import Run, refuse_used
from .settings import Settings
from .train import build, read_config

# What all runs of a population share, because they walk in step.
SHARED = ("steps", "epochs", "batch_size", "validate_every", "validation_batches", "device", "precision")


def train_population(
    configs: Sequence[Mapping[str, Any]],
    folders: Sequence[Folder] | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
) -> list[Result | NonFiniteLoss]:
    """Train what each config names, all of them at once.

    Every run has its own weights, batches, learning rate, optimiser, seed, metrics, best weights and folder, and could
    be resumed alone. One that diverges stops, and its place in the list holds the error; the others go on. On a GPU the
    recurrences of all models are one launch.

    Args:
        configs: tables as in `train`, of models alike in all but their numbers and of tasks with the same sizes. Steps,
            batch size, validations, device and precision are the same in all; the optimiser is adam, rmsprop or sgd.
            Dropout masks are not those of a run alone.
        folders: one for each; None keeps the runs in memory.
        resume: go on with the runs in `folders`.
        progress: show a bar on a terminal.

        >>> seeds = [{"task": {"name": "adding"}, "system": system, "training": {"seed": seed}} for seed in range(8)]
        >>> [result.valid_metric for result in train_population(seeds)]
    """
    if not configs:
        raise ValueError("configs must be at least one run, got none")
    places: list[Folder] = [None] * len(configs) if folders is None else list(folders)
    if len(places) != len(configs):
        raise ValueError(f"folders must be as many as the configs, {len(configs)}, got {len(places)}")
    read = [read_config(config) for config in configs]
    settings = [each[2] for each in read]
    _check(settings)
    models = [build(task, system, one.seed) for (task, system, _), one in zip(read, settings, strict=True)]
    Population(cast(Sequence[SequenceModel], models))
    tables = []
    for (task, system, one), model, folder in zip(read, models, places, strict=True):
        check_model(model, task, one)
        tables.append(
            {"task": {"name": task.name, **task.options()}, "system": dict(system), "training": one.to_dict()}
        )
        if folder is not None and not resume:
            refuse_used(folder)
        elif folder is not None:
            check_same(Run(folder), tables[-1], one)
    fabric = launch(settings[0])
    if fabric.world_size > 1:
        raise ValueError("a population trains in one process, got several: start torchrun for each run by itself")
    with ExitStack() as stack:
        loops = [
            stack.enter_context(begun(fabric, model, each[0], each[2], folder, table, resume))
            for model, each, folder, table in zip(models, read, places, tables, strict=True)
        ]
        failed = _Walk(loops).run(progress)
        return [failed.get(i) or conclude(loop, places[i]) for i, loop in enumerate(loops)]


def _check(settings: Sequence[Settings]) -> None:
    for one in settings:
        if one.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)} in a population, got {one.optimizer!r}")
        if one.penalty is not None:
            raise ValueError(f"penalty must be left out in a population, got {one.penalty!r}")
        for name in SHARED:
            if getattr(one, name) != getattr(settings[0], name):
                found = f"{getattr(settings[0], name)!r} and {getattr(one, name)!r}"
                raise ValueError(f"{name} must be the same in all runs of a population, got {found}")
    check_device(settings[0].device)


class _Walk:
    """Loops that walk in step: one pass for all, then each does with its own what it would do alone."""

    def __init__(self, loops: Sequence[Loop]) -> None:
        self.loops = list(loops)
        self.failed: dict[int, NonFiniteLoss] = {}

    def run(self, shown: bool) -> dict[int, NonFiniteLoss]:
        """Train to the end; the errors of those that diverged, by place."""
        first = self.loops[0]
        device = first.fabric.device
        bar = ProgressBar(first.settings.steps, min(loop.step for loop in self.loops), shown)
        for loop in self.loops:
            note(loop, "running")
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            try:
                for loop in self.loops:
                    loop.start()
                self._walk(bar)
                for i, loop in enumerate(self.loops):
                    if i not in self.failed:
                        loop.test()
            except BaseException as error:
                interrupted = isinstance(error, KeyboardInterrupt)
                for i, loop in enumerate(self.loops):
                    if i not in self.failed:
                        why = f"interrupted at step {loop.step}" if interrupted else str(error).split("\n")[0]
                        note(loop, "interrupted" if interrupted else "failed", message=why)
                raise
            finally:
                bar.close()
        return self.failed

    def _walk(self, bar: ProgressBar) -> None:
        together: list[int] = []
        population: Population | None = None
        while active := self._behind():
            if active != together or population is None:
                together = active
                population = Population([cast(SequenceModel, self.loops[i].model) for i in active])
            loops = [self.loops[i] for i in active]
            self._update(population, loops)
            found = _validate(population, loops) if loops[0].validating else [None] * len(loops)
            for i, loop, one in zip(active, loops, found, strict=True):
                try:
                    loop.look(one)
                except NonFiniteLoss as error:
                    self.failed[i] = error
                    note(loop, "failed", message=str(error))
            running = len(self.loops) - len(self.failed)
            bar.update(loops[0].step, f"{running} of {len(self.loops)} runs, {loops[0].note}")

    def _behind(self) -> list[int]:
        """Those that run and have come least far: after a crash some may be a checkpoint ahead."""
        running = [i for i, loop in enumerate(self.loops) if loop.running and i not in self.failed]
        least = min((self.loops[i].step for i in running), default=0)
        return [i for i in running if self.loops[i].step == least]

    @staticmethod
    def _update(population: Population, loops: Sequence[Loop]) -> None:
        batches = [loop.draw() for loop in loops]
        states = [loop.state if batch.carried else None for loop, batch in zip(loops, batches, strict=True)]
        with loops[0].fabric.autocast():
            outputs, ends = _answer(population.train(), batches, _stack(states), [loop.task for loop in loops])
            losses = torch.stack(
                [
                    loop.task.loss(output, batch.targets)
                    for loop, output, batch in zip(loops, outputs, batches, strict=True)
                ]
            )
        losses.sum().backward()
        for i, loop in enumerate(loops):
            method = cast(GradientMethod, loop.method)
            loop.absorb(method.apply(losses[i].detach(), _part(ends, i), loop.share))


@torch.no_grad()
def _validate(population: Population, loops: Sequence[Loop]) -> list[tuple[float, float] | None]:
    """Loss and metric of every loop on what it holds out."""
    population.eval()
    tasks = [loop.task.held_out() for loop in loops]
    total, state = torch.zeros(len(loops), 3, device=loops[0].fabric.device), None
    for batches in zip(*(loop.judging.held_out() for loop in loops), strict=True):
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
        (loss / weight, task.summary(metric / weight))
        for task, (loss, metric, weight) in zip(tasks, total.tolist(), strict=True)
    ]


def _answer(
    population: Population, batches: Sequence[Batch], state: Any, tasks: Sequence[Task]
) -> tuple[list[Tensor], Any]:
    """The outputs of each model to its batch; batches of fewer steps are padded meanwhile."""
    steps = [len(batch.inputs) for batch in batches]
    longest = max(steps)
    dtype = next(population.parameters()).dtype
    padded = [
        F.pad(batch.inputs, (0, 0) * (batch.inputs.dim() - 1) + (0, longest - len(batch.inputs))) for batch in batches
    ]
    inputs = torch.stack(padded)
    lengths = None if batches[0].lengths is None else torch.stack([cast(Tensor, batch.lengths) for batch in batches])
    outputs, ends = population(inputs.to(dtype) if inputs.is_floating_point() else inputs, state, lengths)
    every = tasks[0].readout == "every"
    return [output[:end] if every else output for output, end in zip(outputs, steps, strict=True)], ends


def _stack(states: Sequence[Any]) -> Any:
    if states[0] is None:
        return None
    if isinstance(states[0], tuple):
        return tuple(torch.stack(member) for member in zip(*states, strict=True))
    return torch.stack(list(states))


def _part(states: Any, i: int) -> Any:
    return tuple(member[i] for member in states) if isinstance(states, tuple) else states[i]
