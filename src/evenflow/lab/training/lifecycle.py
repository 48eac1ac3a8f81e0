"""The start and the end of a run: its folder opened, a checkpoint restored, its status written, its result returned."""

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
from evenflow.models.bundle import RUN_WEIGHTS, bundle_text

from . import checkpoint, metrics, recovery
from .changed_config import check_unchanged
from .given_parts import NOTHING_GIVEN, GivenParts
from .launch import matmul_precision
from .loggers import RunLoggers
from .longer_run import start_weights
from .loop import Loop
from .probing import Probing
from .result import Result
from .run_folder import CHECKPOINT, METRICS, PROBES, Run
from .run_writer import RunWriter
from .settings import VALIDATE_EVERY, Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Folder = str | os.PathLike[str] | None


@contextmanager
def open_run(
    fabric: Fabric,
    model: nn.Module,
    task: Task,
    settings: Settings,
    folder: Folder,
    table: Mapping[str, Any],
    resume: bool,
    given: GivenParts = NOTHING_GIVEN,
    until: int | None = None,
) -> Iterator[Loop]:
    """A loop ready to run. Its folder, if it has one, is created or resumed, and closed at the end of the block.

    Args:
        until: the newest step from which it may resume; later checkpoints are removed.
    """
    start_weights(model, settings, folder, resume)
    loggers = RunLoggers(settings.logger, given.loggers, table, folder, fabric.is_global_zero)
    writer = _open_folder(fabric, folder, table, resume)
    try:
        loop = Loop(fabric, model, task, settings.for_task(task, fabric.world_size), writer, given, loggers)
        if folder is not None and resume:
            _restore(loop, Path(folder), until)
        if writer is not None:
            writer.bundle(bundle_text(model, task.schema(), RUN_WEIGHTS, partial=True))
        with matmul_precision(settings.precision):
            yield loop
    finally:
        loggers.close("failed")  # those of a finished run are closed
        if writer is not None:
            writer.close()


@contextmanager
def status_written(loop: Loop) -> Iterator[None]:
    """Write the status running, and interrupted or failed if the block ends so."""
    write_status(loop, "running")
    try:
        yield
    except BaseException as error:
        write_failure(loop, error)
        raise


def write_failure(loop: Loop, error: BaseException) -> None:
    """Write that the run was interrupted or failed."""
    loop.loggers.close("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
    if isinstance(error, KeyboardInterrupt):
        write_status(loop, "interrupted", message=f"interrupted at step {loop.step}")
    elif isinstance(error, Exception):
        write_status(loop, "failed", message=str(error).split("\n")[0])


def write_status(loop: Loop, state: str, **details: Any) -> None:
    """Write the run's status, if it has a folder. An error of the disk must not hide the error that ended the run."""
    if loop.writer is not None:
        parameters = sum(p.numel() for p in loop.model.parameters() if p.requires_grad)
        with suppress(OSError) if state in ("failed", "interrupted") else nullcontext():
            loop.writer.status(state, step=loop.step, parameters=parameters, **details)


def finish_run(loop: Loop, folder: Folder) -> Result:
    """Write the status finished with the outcome of the run, and return its result."""
    best = loop.best
    assert best.step is not None
    solved = loop.task.solved(best.metric)
    write_status(
        loop,
        "finished",
        message=f"stopped early at step {loop.step}" if best.stopped else "all steps done",
        stopped_early=best.stopped,
        solved=solved,
        best_step=best.step,
        best_loss=best.loss,
        best_metric=best.metric,
        **({} if math.isnan(loop.test_loss) else {"test_loss": loop.test_loss, "test_metric": loop.test_metric}),
        **({"data_note": loop.task.note} if loop.task.note else {}),
    )
    outcome = {"best_step": best.step, "best_loss": best.loss, "best_metric": best.metric, "solved": solved}
    loop.loggers.finish(outcome | {"test_loss": loop.test_loss, "test_metric": loop.test_metric}, loop.step)
    history = metrics.to_arrays(loop.log.lines)

    def last(column: str) -> float:
        measured = history[column][~np.isnan(history[column])]
        return float(measured[-1]) if len(measured) else float("nan")

    return Result(
        model=loop.model,
        task=loop.task,
        steps=loop.step,
        loss=last("loss"),
        valid_loss=last("valid_loss"),
        valid_metric=last("valid_metric"),
        best_step=best.step,
        best_loss=best.loss,
        best_metric=best.metric,
        test_loss=loop.test_loss,
        test_metric=loop.test_metric,
        solved=solved,
        stopped_early=best.stopped,
        seconds=last("seconds"),
        folder=None if folder is None else Path(folder),
        history=history,
        probes=None if loop.probing is None else loop.probing.arrays(),
        best_weights=best.weights,
    )


def _open_folder(fabric: Fabric, folder: Folder, table: Mapping[str, Any], resume: bool) -> RunWriter | None:
    writers: list[RunWriter] = []

    def open_writer() -> None:
        if folder is not None:
            writers.append(RunWriter.reopen(folder) if resume else RunWriter.create(folder, table))
            if resume:
                writers[0].set_data_folder(table["task"].get("data"))

    try:
        _on_first_process(fabric, open_writer)
    except BaseException:
        for writer in writers:
            writer.close()
        raise
    return writers[0] if writers else None


def _restore(loop: Loop, folder: Path, until: int | None) -> None:
    """Go back to the last checkpoint; rows and probes after it are dropped and will be computed again."""
    run, writer = Run(folder, limit=None), loop.writer

    def find() -> tuple[recovery.Start | None, list[str]]:
        if until is not None:
            checkpoint.rewind(folder / CHECKPOINT, until)
        return recovery.find_start(folder / CHECKPOINT), run.metric_lines()

    start, lines = _on_first_process(loop.fabric, find)
    if start is not None:
        saved, best = recovery.load_start(folder / CHECKPOINT, start)
        check_unchanged(run, saved)
        if (processes := saved.state.get("processes")) != loop.fabric.world_size:
            raise ValueError(
                f"run {str(folder)!r} was made by {processes} processes and must be resumed by as many, "
                f"got {loop.fabric.world_size}"
            )
        loop.restore(saved, best, repr(str(folder)))
        _warn_of_versions(saved, folder)
    last = loop.step if start is not None else -1
    if writer is not None:
        loop.log.lines = writer.keep_until(last, lines)
        _warn_of_lost_rows(loop, folder)
        if loop.probing is not None:
            _restore_probes(loop.probing, folder, last)


def _warn_of_versions(saved: checkpoint.Checkpoint, folder: Path) -> None:
    now = checkpoint.versions_now()
    other = [f"{name} {version}" for name, version in saved.versions.items() if now.get(name) != version]
    if other:
        warnings.warn(
            f"run {str(folder)!r} was made with {' and '.join(other)}, and goes on with "
            f"{' and '.join(f'{name} {now[name]}' for name in saved.versions if name in now)}: last bits may differ",
            stacklevel=2,
        )


def _restore_probes(probing: Probing, folder: Path, last: int) -> None:
    """Go back to the probes up to step `last`; a damaged file of probes must not stop the run."""
    try:
        arrays = Run(folder, limit=None).probes
        if arrays is not None:
            probing.restore(arrays, last)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        said = error if isinstance(error, ValueError) else f"{PROBES} of run {str(folder)!r} does not hold probes"
        warnings.warn(f"{said}; the probes up to step {max(last, 0)} are lost, the run goes on", stacklevel=2)


def _on_first_process(fabric: Fabric, work: Callable[[], Any]) -> Any:
    """What `work` returns on the first process, on all processes; an error there becomes a ValueError on all."""
    value, problem = None, None
    if fabric.is_global_zero:
        try:
            value = work()
        except (ValueError, OSError) as error:
            problem = str(error)
    value, problem = fabric.broadcast((value, problem))
    if problem is not None:
        raise ValueError(problem)
    return value


def _warn_of_lost_rows(loop: Loop, folder: Path) -> None:
    intervals = (
        loop.settings.log_every,
        loop.settings.validate_every or VALIDATE_EVERY,
        loop.settings.checkpoint_every,
    )
    expected = {step for every in intervals for step in range(every, loop.step + 1, every)}
    missing = expected - {metrics.step_of(line) for line in loop.log.lines}
    if missing:
        warnings.warn(
            f"{METRICS} of run {str(folder)!r} has lost {len(missing)} of its rows up to step {loop.step}, the first "
            f"that of step {min(missing)}: the run goes on without them",
            stacklevel=2,
        )
