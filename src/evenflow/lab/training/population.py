"""Many runs of models of one shape, side by side: each ends as it would alone, to rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

import torch

from evenflow import penalties
from evenflow.models.population import Population
from evenflow.models.sequence_model import SequenceModel

from .fit import check_model
from .launch import check_device, launch
from .lifecycle import Folder, begun, check_same, conclude, note
from .loop import Loop
from .non_finite import NonFiniteLoss
from .optimizers import OPTIMIZERS
from .progress import ProgressBar
from .result import Result
from .run_folder import Run, refuse_used
from .settings import Settings
from .stopping import attentive, heed, wanted
from .tables import check_data, tables
from .together import Together, validate
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
    recurrences of all models run side by side.

    Args:
        configs: tables as in `train`, of models alike in all but their numbers and of tasks with the same sizes. Steps,
            batch size, validations, device and precision are the same in all; the optimiser is adam, rmsprop or sgd,
            and a penalty reads the weights alone. Dropout masks are not those of a run alone.
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
    written = []
    for (task, system, one), model, folder in zip(read, models, places, strict=True):
        check_model(model, task, one)
        written.append(tables(task, one, {"system": system}))
        if folder is not None and not resume:
            refuse_used(folder)
        elif folder is not None:
            check_data(Run(folder), task, written[-1])
            check_same(Run(folder), written[-1], one)
    fabric = launch(settings[0])
    if fabric.world_size > 1:
        raise ValueError("a population trains in one process, got several: start torchrun for each run by itself")
    heed()
    with attentive(), ExitStack() as stack:
        loops = [
            stack.enter_context(begun(fabric, model, each[0], each[2], folder, table, resume))
            for model, each, folder, table in zip(models, read, places, written, strict=True)
        ]
        return _Walk(loops, places).run(progress)


def _check(settings: Sequence[Settings]) -> None:
    for one in settings:
        if one.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)} in a population, got {one.optimizer!r}")
        if one.penalty is not None and penalties.make(one.penalty).reads_states:
            raise ValueError(f"penalty must read the weights alone in a population, got {one.penalty!r}")
        for name in SHARED:
            if getattr(one, name) != getattr(settings[0], name):
                found = f"{getattr(settings[0], name)!r} and {getattr(one, name)!r}"
                raise ValueError(f"{name} must be the same in all runs of a population, got {found}")
    check_device(settings[0].device)


class _Walk:
    """Loops that walk in step: one pass for all, then each does with its own what it would do alone."""

    def __init__(self, loops: Sequence[Loop], places: Sequence[Folder]) -> None:
        self.loops, self.places = list(loops), places
        self.ended: dict[int, Result | NonFiniteLoss] = {}  # by place: what was found, or how it diverged

    def run(self, shown: bool) -> list[Result | NonFiniteLoss]:
        """Train to the end."""
        first = self.loops[0]
        device = first.fabric.device
        bar = ProgressBar(first.settings.steps, min(loop.step for loop in self.loops), shown)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            try:
                for loop in self.loops:
                    note(loop, "running")
                for loop in self.loops:
                    loop.resume_clock()
                    loop.start()
                self._walk(bar)
                for i in range(len(self.loops)):
                    self._conclude(i)
            except BaseException as error:
                interrupted = isinstance(error, KeyboardInterrupt)
                for i, loop in enumerate(self.loops):
                    if i not in self.ended:
                        why = f"interrupted at step {loop.step}" if interrupted else str(error).split("\n")[0]
                        note(loop, "interrupted" if interrupted else "failed", message=why)
                raise
            finally:
                bar.close()
        return [self.ended[i] for i in range(len(self.loops))]

    def _walk(self, bar: ProgressBar) -> None:
        active: list[int] = []
        together: Together | None = None
        while behind := self._behind():
            if (reason := wanted()) is not None:
                for i in self._running():
                    self.loops[i].leave()
                raise reason
            if behind != active or together is None:
                active, together = behind, Together([self.loops[i] for i in behind])
            loops = together.loops
            together.update()
            found = validate(together.population, loops) if loops[0].validating else [None] * len(loops)
            for i, loop, one in zip(active, loops, found, strict=True):
                try:
                    loop.look(one)
                except NonFiniteLoss as error:
                    self.ended[i] = error
                    note(loop, "failed", message=str(error))
                if not loop.running:  # what has ended stays so, whatever becomes of the others
                    self._conclude(i)
            running = len(self._running())
            bar.update(loops[0].step, f"{running} of {len(self.loops)} runs, {loops[0].note}")

    def _conclude(self, i: int) -> None:
        if i not in self.ended:
            self.loops[i].test()
            self.ended[i] = conclude(self.loops[i], self.places[i])

    def _running(self) -> list[int]:
        return [i for i, loop in enumerate(self.loops) if loop.running and i not in self.ended]

    def _behind(self) -> list[int]:
        """Those that run and have come least far: after a crash some may be a checkpoint ahead."""
        running = self._running()
        least = min((self.loops[i].step for i in running), default=0)
        return [i for i in running if self.loops[i].step == least]
