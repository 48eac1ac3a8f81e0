"""Train a model on a task."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from evenflow.lab.tasks import Position, Task
from evenflow.layers.recurrent import Recurrent

from . import evaluation
from .event_log import check_events
from .launch import check_device, launch
from .lifecycle import begun, check_same, conclude, noted
from .methods import rehearse
from .result import Result
from .run_folder import Run, refuse_used
from .seeds import derive
from .settings import Settings
from .stopping import attentive, heed
from .tables import check_data, tables


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
        settings: fields of `Settings`, such as ``steps=1000, batch_size=50, optimizer="adam", lr=1e-3``.

    Raises:
        ValueError: a setting, the model or the folder will not do; nothing has been done yet.
        NonFiniteLoss: the loss or gradient became infinite or not a number; the run folder says so and its last
            checkpoint is good.

    The seed decides the batches and the dropout, not the starting weights: those are the model's own. Killed at any
    moment and resumed, a run ends in the same bits as one that was left alone (on a GPU, with an exponential or a
    factorized map, last bits may differ). After Ctrl-C or SIGTERM it ends with the update under way, its validation
    included, and saves that; a second Ctrl-C ends it at once, and so does the first under `torchrun`. There each
    process draws its own batches of `batch_size`, and gradients are averaged.

        >>> model = SequenceModel(create("sgornn", 2, 64), 1)
        >>> result = fit(model, Adding(length=200), steps=3000, optimizer="rmsprop", lr=1e-2)
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
    check_events(settings, folder)
    if folder is None and resume:
        raise ValueError("resume needs the folder of the run, got folder None")
    if folder is not None and not resume:
        refuse_used(folder)
    table = tables(task, settings, config)
    if folder is not None and resume:
        check_data(Run(folder), task, table)
    check_model(model, task, settings)
    settings.for_task(task)
    if folder is not None and resume:
        check_same(Run(folder), table, settings)
    was_training = model.training
    fabric = launch(settings)
    heed(fabric)
    listening = attentive() if fabric.world_size == 1 else nullcontext()
    with listening, begun(fabric, model, task, settings, folder, table, resume) as loop:
        try:
            with noted(loop):
                loop.run(progress)
            return conclude(loop, folder)
        finally:
            model.train(was_training)


def check_model(model: nn.Module, task: Task, settings: Settings) -> None:
    """A ValueError if the model's answer to two sequences has another shape than the task asks for, or cannot be learnt
    from in the way the settings name."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise ValueError("model has no parameter to train, at least one must require a gradient")
    if settings.probe_every is not None and not isinstance(getattr(model, "layer", None), Recurrent):
        raise ValueError("probe_every needs a model whose layer is one of evenflow's, because it listens to the states")
    check_parts(task, settings)
    generator = torch.Generator(parameter.device).manual_seed(derive(settings.seed, "check"))
    batch = task.batch(2, generator)
    size = batch.inputs.shape[1]  # one, where a data set has no more
    # In the other precisions Fabric converts one of them, or runs in both.
    if batch.inputs.is_floating_point() and settings.precision not in ("32-true", "tf32"):
        batch = batch._replace(inputs=batch.inputs.to(parameter.dtype))
    was_training = model.training
    try:
        with torch.no_grad():
            answered: Any = evaluation.answer(model.eval(), batch)
    finally:
        model.train(was_training)
    if not (isinstance(answered, tuple | list) and len(answered) == 2 and isinstance(answered[0], torch.Tensor)):
        got = f"a {type(answered).__name__}" + (f" of {len(answered)}" if isinstance(answered, tuple | list) else "")
        raise ValueError(f"model must answer with outputs and a state (or None), as SequenceModel does, got {got}")
    outputs = answered[0]
    wanted = (size, task.output_size) if task.readout == "last" else (len(batch.inputs), size, task.output_size)
    if tuple(outputs.shape) != wanted:
        given = "two sequences" if size == 2 else "one sequence"
        raise ValueError(
            f"model must answer {given} of task {task.name} with shape {wanted}, got {tuple(outputs.shape)}"
        )
    kept = [buffer.clone() for buffer in model.buffers()]
    try:
        rehearse(model.train(), task, batch, settings)  # as it will be trained, with what it drops
    finally:
        model.train(was_training)
        for buffer, before in zip(model.buffers(), kept, strict=True):
            buffer.copy_(before)


def check_parts(task: Task, settings: Settings) -> None:
    """A ValueError if a part of a data set is missing or too small: found now, and not after the last update."""
    task.epoch_steps(settings.batch_size)
    for part in (task.held_out() if settings.validation_batches is None else None, task.test()):
        if part is None:
            continue
        size = settings.batch_size if part.carries else 1
        batches = part.every_batch(size, Position(0, settings.steps), torch.device("cpu"))
        if batches is not None and next(iter(batches), None) is None:
            raise ValueError(f"task {task.name} has nothing to validate or to test on: its data set is too small")
