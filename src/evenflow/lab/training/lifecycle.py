"""The beginning and the end of a run: its folder opened or gone on with, how it went noted, what it hands back."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from evenflow.lab.tasks import Task

from . import metrics, recovery
from .launch import products
from .loop import Loop
from .result import Result
from .run_folder import CHECKPOINT, METRICS, Run, RunWriter
from .settings import Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Folder = str | os.PathLike[str] | None


@contextmanager
def begun(
    fabric: Fabric,
    model: nn.Module,
    task: Task,
    settings: Settings,
    folder: Folder,
    table: Mapping[str, Any],
    resume: bool,
) -> Iterator[Loop]:
    """A loop ready to run, in its folder if it has one, which is closed at the end."""
    writer = _open(fabric, folder, table, resume)
    try:
        loop = Loop(fabric, model, task, settings.for_task(task, fabric.world_size), writer)
        if folder is not None and resume:
            _restore(loop, Path(folder))
        with products(settings.precision):
            yield loop
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def noted(loop: Loop) -> Iterator[None]:
    """Leave in the run folder that the run is under way, was interrupted or failed."""
    note(loop, "running")
    try:
        yield
    except KeyboardInterrupt:
        note(loop, "interrupted", message=f"interrupted at step {loop.step}")
        raise
    except Exception as error:
        note(loop, "failed", message=str(error).split("\n")[0])
        raise


def note(loop: Loop, state: str, **details: Any) -> None:
    """Write the run's status, if it has a folder; a full disk does not take the place of what has ended a run."""
    if loop.writer is not None:
        parameters = sum(p.numel() for p in loop.model.parameters() if p.requires_grad)
        with suppress(OSError) if state in ("failed", "interrupted") else nullcontext():
            loop.writer.status(state, step=loop.step, parameters=parameters, **details)


def conclude(loop: Loop, folder: Folder) -> Result:
    """Leave in the run folder that the run has finished, and how, and hand back what it found."""
    note(
        loop,
        "finished",
        message=f"stopped early at step {loop.step}" if loop.best.stopped else "all steps done",
        stopped_early=loop.best.stopped,
        solved=loop.task.solved(loop.best.metric),
        best_step=loop.best.step,
        best_loss=loop.best.loss,
        best_metric=loop.best.metric,
        **({} if math.isnan(loop.test_loss) else {"test_loss": loop.test_loss, "test_metric": loop.test_metric}),
        **({"data_note": loop.task.note} if loop.task.note else {}),
    )
    return _result(loop, None if folder is None else Path(folder))


def check_same(run: Run, table: Mapping[str, Any], settings: Settings) -> None:
    differs = Settings.from_dict(run.config.get("training", {})).difference(settings)
    if differs is not None:
        before = run.config["training"].get(differs, "its default")
        raise ValueError(
            f"{differs} must stay as the run {str(run.folder)!r} began, {before}, got {getattr(settings, differs)!r}"
        )
    if without_place(run.config.get("task", {})) != without_place(table["task"]):
        raise ValueError(
            f"task must stay as the run {str(run.folder)!r} began, {run.config.get('task')}, got {table['task']}"
        )


def without_place(task: Mapping[str, Any]) -> dict[str, Any]:
    """A task but for the folder of its data, which may lie elsewhere when a run goes on."""
    return {name: value for name, value in task.items() if name != "data"}


def placed(config: Mapping[str, Any], data: str | os.PathLike[str] | None) -> Mapping[str, Any]:
    """A run's config, with its data in another folder where one is given."""
    return config if data is None else {**config, "task": {**config["task"], "data": str(data)}}


def _open(fabric: Fabric, folder: Folder, table: Mapping[str, Any], resume: bool) -> RunWriter | None:
    """The first process opens the folder; what stops it stops the others too."""
    writer, problem = None, None
    if folder is not None and fabric.is_global_zero:
        try:
            writer = RunWriter.reopen(folder) if resume else RunWriter.create(folder, table)
            if resume:
                writer.find_data(table["task"].get("data"))
        except ValueError as error:
            problem = str(error)
    problem = fabric.broadcast(problem)
    if problem is not None:
        raise ValueError(problem)
    return writer


def _restore(loop: Loop, folder: Path) -> None:
    """Back to the last checkpoint: rows and probes after it are dropped and will be computed again."""
    run, writer = Run(folder), loop.writer
    start, lines = _agreed(loop.fabric, lambda: (recovery.find_start(folder / CHECKPOINT), run.metric_lines()))
    if start is not None:
        saved, best = recovery.load_start(folder / CHECKPOINT, start)
        if saved.state["processes"] != loop.fabric.world_size:
            raise ValueError(
                f"run {str(folder)!r} was made by {saved.state['processes']} processes and must be resumed by as many, "
                f"got {loop.fabric.world_size}"
            )
        loop.restore(saved, best, repr(str(folder)))
    last = loop.step if start is not None else -1
    if writer is not None:
        loop.rows.lines = writer.keep_until(last, lines)
        _say_gap(loop, folder)
        probes = run.probes
        if probes is not None:
            loop.probing.restore(probes, last)


def _agreed(fabric: Fabric, decide: Callable[[], Any]) -> Any:
    """What the first process decides; what stops it stops the others too."""
    decided, problem = None, None
    if fabric.is_global_zero:
        try:
            decided = decide()
        except (ValueError, OSError) as error:
            problem = str(error)
    decided, problem = fabric.broadcast((decided, problem))
    if problem is not None:
        raise ValueError(problem)
    return decided


def _say_gap(loop: Loop, folder: Path) -> None:
    """A warning if rows from before the checkpoint are gone."""
    rhythms = (loop.settings.log_every, loop.settings.validate_every, loop.settings.checkpoint_every)
    expected = {step for every in rhythms for step in range(every, loop.step + 1, every)}
    missing = expected - {metrics.step_of(line) for line in loop.rows.lines}
    if missing:
        warnings.warn(
            f"{METRICS} of run {str(folder)!r} has lost {len(missing)} of its rows up to step {loop.step}, the first "
            f"that of step {min(missing)}: the run goes on without them",
            stacklevel=2,
        )


def _result(loop: Loop, folder: Path | None) -> Result:
    history = metrics.to_arrays(loop.rows.lines)

    def last(column: str) -> float:
        measured = history[column][~np.isnan(history[column])]
        return float(measured[-1]) if len(measured) else float("nan")

    assert loop.best.step is not None
    return Result(
        model=loop.model,
        task=loop.task,
        steps=loop.step,
        loss=last("loss"),
        valid_loss=last("valid_loss"),
        valid_metric=last("valid_metric"),
        best_step=loop.best.step,
        best_loss=loop.best.loss,
        best_metric=loop.best.metric,
        test_loss=loop.test_loss,
        test_metric=loop.test_metric,
        solved=loop.task.solved(loop.best.metric),
        stopped_early=loop.best.stopped,
        seconds=last("seconds"),
        folder=folder,
        history=history,
        probes=loop.probing.arrays(),
        best_weights=loop.best.weights,
    )
