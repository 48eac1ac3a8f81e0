"""Train several models of one shape as a population; each ends as it would alone, to rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch

from evenflow import penalties
from evenflow.models.population import Population
from evenflow.models.sequence_model import SequenceModel

from .common_start import MemberStart, common_start, members
from .config import build, read_config
from .fit import checked_tables
from .given_parts import OWN
from .launch import check_device, launch
from .lifecycle import Folder, finish_run, open_run, write_failure, write_status
from .loop import Loop
from .matrix_clipping import MAPPED
from .optimizers import OPTIMIZERS
from .population_step import PopulationStep, validate
from .progress import ProgressBar
from .result import Result
from .schedules import SCHEDULES
from .settings import Settings
from .stopping import NonFiniteLoss, check_stop, signal_handlers, stop_requested

# Settings that all runs of a population share, because their updates are made together.
SHARED = (
    "steps",
    "epochs",
    "batch_size",
    "validate_every",
    "validation_batches",
    "checkpoint_every",
    "device",
    "precision",
)


def train_population(
    configs: Sequence[Mapping[str, Any]],
    folders: Sequence[Folder] | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
) -> list[Result | NonFiniteLoss]:
    """Train several configs at once.

    Every run has its own weights, batches, learning rate, optimiser, seed, metrics, best weights and folder, and could
    be resumed alone. A run that diverges stops, and its place in the list holds the error; the others continue. On a
    GPU the recurrences of all models run side by side.

    Args:
        configs: tables as in `train`. Models differ in their numbers alone, and tasks have the same sizes. Steps, batch
            size, validations, checkpoints, device and precision are the same in all; the optimiser follows the
            gradient, and a penalty reads the weights alone. On a GPU dropout masks differ from those of a run alone.
        folders: one for each config; None keeps the runs in memory.
        resume: continue the runs in `folders`; those that were trained together go on from the newest step that all of
            them have saved, so that the result is bit-identical to that of an undisturbed training. A run that has
            diverged by then stays so.
        progress: show a progress bar on a terminal.

        >>> tables = {"task": {"name": "adding", "length": 20}, "system": {"name": "sgornn", "hidden_size": 16}}
        >>> seeds = [tables | {"training": {"seed": seed, "steps": 20}} for seed in range(8)]
        >>> len([result.valid_metric for result in train_population(seeds)])
        8
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
    tables = [
        checked_tables(model, task, one, folder, system, resume and folder is not None)
        for (task, system, one), model, folder in zip(read, models, places, strict=True)
    ]
    fabric = launch(settings[0])
    if fabric.world_size > 1:
        raise ValueError("a population trains in one process, got several: start torchrun for each run by itself")
    check_stop()
    starts = _starts(places, resume)
    with signal_handlers(), ExitStack() as stack:
        loops: dict[int, Loop] = {}
        for i, (model, each, start) in enumerate(zip(models, read, starts, strict=True)):
            if start.error is None:
                opened = open_run(fabric, model, each[0], each[2], places[i], tables[i], resume, until=start.until)
                loops[i] = stack.enter_context(opened)
                folder = places[i]
                if folder is not None:
                    loops[i].population = members(Path(folder), start.population)
        return _PopulationLoop(loops, places, starts).run(progress)


def _starts(places: Sequence[Folder], resume: bool) -> list[MemberStart]:
    """Where each run starts; all runs of a new population are together."""
    folders = [Path(folder) for folder in places if folder is not None]
    starts = iter(common_start(folders) if resume else [MemberStart(tuple(folders))] * len(folders))
    return [MemberStart() if folder is None else next(starts) for folder in places]


def _check(settings: Sequence[Settings]) -> None:
    for one in settings:
        if one.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)} in a population, got {one.optimizer!r}")
        if one.accumulate > 1:
            raise ValueError(f"accumulate must be 1 in a population, got {one.accumulate}: train its runs one by one")
        if OWN in one.schedule:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)} in a population, got {one.schedule!r}")
        if one.penalty is not None and penalties.make(one.penalty).reads_states:
            raise ValueError(f"penalty must read the weights alone in a population, got {one.penalty!r}")
        if one.clip_scope == MAPPED:
            raise ValueError(f"clip_scope must not be {MAPPED} in a population, whose maps run as one, got {MAPPED!r}")
        for name in SHARED:
            if getattr(one, name) != getattr(settings[0], name):
                values = f"{getattr(settings[0], name)!r} and {getattr(one, name)!r}"
                raise ValueError(f"{name} must be the same in all runs of a population, got {values}")
    check_device(settings[0].device)


class _PopulationLoop:
    """Loops whose updates and validations are made together; each records its own.

    Args:
        loops: by the place of the run; a run that has diverged before has none.
        places: the folders of all runs.
        starts: how they start. Runs that were not trained together before are not mixed.
    """

    def __init__(self, loops: Mapping[int, Loop], places: Sequence[Folder], starts: Sequence[MemberStart]) -> None:
        self.loops, self.places, self.starts = dict(loops), places, starts
        self.ended: dict[int, Result | NonFiniteLoss] = {
            i: start.error for i, start in enumerate(starts) if start.error is not None
        }

    def run(self, progress: bool) -> list[Result | NonFiniteLoss]:
        """Train to the end."""
        if self.loops:
            self._run(progress)
        return [self.ended[i] for i in range(len(self.places))]

    def _run(self, progress: bool) -> None:
        first = next(iter(self.loops.values()))
        device = first.fabric.device
        bar = ProgressBar(first.settings.steps, min(loop.step for loop in self.loops.values()), progress)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            try:
                for loop in self.loops.values():
                    write_status(loop, "running")
                for loop in self.loops.values():
                    loop.start()
                self._train(bar)
                for i in self.loops:
                    self._finish(i)
            except BaseException as error:
                for i, loop in self.loops.items():
                    if i not in self.ended:
                        write_failure(loop, error)
                raise
            finally:
                bar.close()

    def _train(self, bar: ProgressBar) -> None:
        active: list[int] = []
        step: PopulationStep | None = None
        while behind := self._behind():
            if (reason := stop_requested()) is not None:
                for i in self._running():
                    self.loops[i].save_before_stop()
                raise reason
            if behind != active or step is None:
                active, step = behind, PopulationStep([self.loops[i] for i in behind])
            step.update()
            loops = step.loops
            validations = validate(step.population, loops) if loops[0].validating else [None] * len(loops)
            for i, loop, validation in zip(active, loops, validations, strict=True):
                try:
                    loop.record(validation)
                except NonFiniteLoss as error:
                    self.ended[i] = error
                    write_failure(loop, error)
                if not loop.running:  # finished now, so that a failure of another run does not change its status
                    self._finish(i)
            running = len(self._running())
            bar.update(loops[0].step, f"{running} of {len(self.places)} runs, {loops[0].note}")

    def _finish(self, i: int) -> None:
        if i not in self.ended:
            self.loops[i].test()
            self.ended[i] = finish_run(self.loops[i], self.places[i])

    def _running(self) -> list[int]:
        return [i for i, loop in self.loops.items() if loop.running and i not in self.ended]

    def _behind(self) -> list[int]:
        """The running loops of one population with the fewest updates; only damaged or old checkpoints part them."""
        running = self._running()
        together = [i for i in running if self.starts[i].population == self.starts[running[0]].population]
        least = min((self.loops[i].step for i in together), default=0)
        return [i for i in together if self.loops[i].step == least]
