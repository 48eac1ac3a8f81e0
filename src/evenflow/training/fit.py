"""Train a model on a task."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from evenflow.recurrent import Recurrent
from evenflow.tasks import Task

from . import checkpoint, evaluation, metrics
from .launch import check_device, launch
from .loop import Loop
from .methods import rehearse
from .result import Result
from .run_folder import Run, RunWriter, refuse_used
from .seeds import derive
from .settings import Settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def fit(
    model: nn.Module,
    task: Task,
    *,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train `model` on `task`.

    Args:
        model: maps ``(T, B, I)`` to ``(outputs, state)``, as `SequenceModel` does. Trained in place.
        task: where batches, loss and metric come from.
        folder: where config, metrics, probes and checkpoints go; None keeps the run in memory.
        resume: go on with the run in `folder`, which must have the same settings and task.
        progress: show a bar on a terminal once the run takes longer than two seconds.
        settings: fields of `Settings`, such as ``steps=1000, batch_size=50, optimizer="adam", rate=1e-3``.

    Raises:
        ValueError: a setting, the model or the folder will not do; nothing has been done yet.
        NonFiniteLoss: the loss or gradient became infinite or not a number; the run folder says so and its last
            checkpoint is good.

    The seed decides the batches and the dropout, not the starting weights: those are the model's own. Killed at any
    moment and resumed, a run ends in the same bits as one that was left alone. Under `torchrun` each process draws its
    own batches of `batch_size`, and gradients are averaged.

        >>> model = SequenceModel(create("sgornn", 2, 64), 1)
        >>> result = fit(model, Adding(length=200), steps=3000, optimizer="rmsprop", rate=1e-2)
        >>> result.valid_metric, result.solved  # half a minute; with seed 0
        (0.0128..., True)
    """
    return fit_settings(model, task, Settings.from_dict(settings), folder, resume=resume, progress=progress)


# `help(fit)` and editors show every setting with its default, although they are written down once, in Settings.
_own = [p for p in inspect.signature(fit).parameters.values() if p.kind is not p.VAR_KEYWORD]
_fields = [
    inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
    for field in dataclasses.fields(Settings)
]
fit.__signature__ = inspect.Signature([*_own[:2], *_fields, *_own[2:]], return_annotation="Result")  # type: ignore[attr-defined]


def fit_settings(
    model: nn.Module,
    task: Task,
    settings: Settings,
    folder: str | os.PathLike[str] | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Result:
    """`fit` with the settings in one piece; `config` holds further tables for config.toml."""
    check_device(settings.device)
    if folder is None and resume:
        raise ValueError("resume needs the folder of the run, got folder None")
    if folder is not None and not resume:
        refuse_used(folder)
    check_model(model, task, settings)
    settings.for_task(task)
    table = {"task": {"name": task.name, **task.options()}, **(config or {}), "training": settings.to_dict()}
    if folder is not None and resume:
        _check_same(Run(folder), table, settings)
    was_training = model.training
    fabric = launch(settings)
    writer = _open(fabric, folder, table, resume)
    try:
        loop = Loop(fabric, model, task, settings.for_task(task, fabric.world_size), writer)
        if folder is not None and resume:
            _restore(loop, Path(folder))
        _run(loop, progress)
    finally:
        model.train(was_training)
        if writer is not None:
            writer.close()
    return _result(loop, None if folder is None else Path(folder))


def check_model(model: nn.Module, task: Task, settings: Settings) -> None:
    """A ValueError if the model's answer to two sequences has another shape than the task asks for, or cannot be learnt
    from in the way the settings name."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise ValueError("model has no parameter to train, at least one must require a gradient")
    if settings.probe_every is not None and not isinstance(getattr(model, "layer", None), Recurrent):
        raise ValueError("probe_every needs a model whose layer is one of evenflow's, because it listens to the states")
    generator = torch.Generator(parameter.device).manual_seed(derive(settings.seed, "check"))
    batch = task.batch(2, generator)
    if batch.inputs.is_floating_point():
        batch = batch._replace(inputs=batch.inputs.to(parameter.dtype))
    was_training = model.training
    try:
        with torch.no_grad():
            outputs, _ = evaluation.answer(model.eval(), batch)
    finally:
        model.train(was_training)
    wanted = (2, task.output_size) if task.readout == "last" else (len(batch.inputs), 2, task.output_size)
    if tuple(outputs.shape) != wanted:
        raise ValueError(
            f"model must answer two sequences of task {task.name} with shape {wanted}, got {tuple(outputs.shape)}"
        )
    rehearse(model, task, batch, settings)


def _check_same(run: Run, table: Mapping[str, Any], settings: Settings) -> None:
    differs = Settings.from_dict(run.config.get("training", {})).difference(settings)
    if differs is not None:
        before = run.config["training"].get(differs, "its default")
        raise ValueError(
            f"{differs} must stay as the run {str(run.folder)!r} began, {before}, got {getattr(settings, differs)!r}"
        )
    if run.config.get("task") != table["task"]:
        raise ValueError(
            f"task must stay as the run {str(run.folder)!r} began, {run.config.get('task')}, got {table['task']}"
        )


def _open(
    fabric: Fabric, folder: str | os.PathLike[str] | None, table: Mapping[str, Any], resume: bool
) -> RunWriter | None:
    """The first process opens the folder; what stops it stops the others too."""
    writer, problem = None, None
    if folder is not None and fabric.is_global_zero:
        try:
            writer = RunWriter.reopen(folder) if resume else RunWriter.create(folder, table)
        except ValueError as error:
            problem = str(error)
    problem = fabric.broadcast(problem)
    if problem is not None:
        raise ValueError(problem)
    return writer


def _restore(loop: Loop, folder: Path) -> None:
    """Back to the last checkpoint: rows and probes after it are dropped and will be computed again."""
    run, writer = Run(folder), loop.writer
    version = loop.fabric.broadcast(checkpoint.find(folder / "checkpoint") if loop.fabric.is_global_zero else None)
    if version is not None:
        saved = checkpoint.load(folder / "checkpoint", version)
        loop.restore(saved, checkpoint.load_best(folder / "checkpoint"), repr(str(folder)))
    last = loop.step if version is not None else -1
    if writer is not None:
        loop.lines = writer.keep_until(last, run.metric_lines())
        probes = run.probes
        if probes is not None:
            kept = probes["step"] <= last
            loop.probe_steps = probes["step"][kept].tolist()
            loop.probe_norms = list(probes["gradient_norm"][kept])


def _run(loop: Loop, progress: bool) -> None:
    """Train, and leave in the run folder how it went."""
    writer = loop.writer
    parameters = sum(p.numel() for p in loop.model.parameters() if p.requires_grad)

    def note(state: str, **details: Any) -> None:
        if writer is not None:
            writer.status(state, step=loop.step, parameters=parameters, **details)

    note("running")
    try:
        loop.run(progress)
    except KeyboardInterrupt:
        note("interrupted", message=f"interrupted at step {loop.step}")
        raise
    except Exception as error:
        note("failed", message=str(error).split("\n")[0])
        raise
    note(
        "finished",
        message=f"stopped early at step {loop.step}" if loop.stopped else "all steps done",
        stopped_early=loop.stopped,
        solved=loop.task.solved(loop.best_metric),
        best_step=loop.best_step,
        best_loss=loop.best_loss,
        best_metric=loop.best_metric,
        **({} if math.isnan(loop.test_loss) else {"test_loss": loop.test_loss, "test_metric": loop.test_metric}),
        **({"data_note": loop.task.note} if loop.task.note else {}),
    )


def _result(loop: Loop, folder: Path | None) -> Result:
    history = metrics.to_arrays(loop.lines)
    probes = None
    if loop.probe_steps:
        probes = {"step": np.array(loop.probe_steps, dtype=np.int64), "gradient_norm": np.stack(loop.probe_norms)}

    def last(column: str) -> float:
        measured = history[column][~np.isnan(history[column])]
        return float(measured[-1]) if len(measured) else float("nan")

    assert loop.best_step is not None
    return Result(
        model=loop.model,
        task=loop.task,
        steps=loop.step,
        loss=last("loss"),
        valid_loss=last("valid_loss"),
        valid_metric=last("valid_metric"),
        best_step=loop.best_step,
        best_loss=loop.best_loss,
        best_metric=loop.best_metric,
        test_loss=loop.test_loss,
        test_metric=loop.test_metric,
        solved=loop.task.solved(loop.best_metric),
        stopped_early=loop.stopped,
        seconds=last("seconds"),
        folder=folder,
        history=history,
        probes=probes,
        best_weights=loop.best_weights,
    )
