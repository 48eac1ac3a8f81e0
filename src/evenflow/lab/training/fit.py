"""Training: a model by `fit`, a config by `train`, and the run in a folder by `resume`.

The file is past 300 lines because each of the three describes all its arguments; the run itself is in `loop`.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from evenflow.lab.tasks import Task
from evenflow.lab.tasks.given_data import given_task

from .callbacks import Callback
from .changed_config import allow_changes as allow_changes_of
from .config import build, check_data, check_model, check_same, config_tables, read_config, relocate_data
from .given_parts import NOTHING_GIVEN, GivenParts, given_parts
from .launch import check_device, launch
from .lifecycle import finish_run, open_run, status_written
from .loggers import check_loggers
from .longer_run import lengthen, longer_config
from .process_group import ends_together, restarts
from .result import Result
from .run_folder import CONFIG, Run
from .run_writer import check_unused
from .settings import SETTINGS_DOC, Settings
from .stopping import NonFiniteLoss, check_stop, signal_handlers


def fit(
    model: nn.Module,
    task: Any,
    *,
    loss: Any = None,
    metric: Any = None,
    validation: Any = None,
    callbacks: Sequence[Callback] = (),
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,
) -> Result:
    """Train `model` on a task or on data of your own.

    Args:
        model: maps ``(T, B, I)`` to ``(outputs, state)``, as `SequenceModel` does. Trained in place.
        task: what to learn.

            - A task: it gives batches, loss and metric.
            - Arrays or tensors ``(x, y)``: x ``(N, T, C)`` or a list of ``(T_n, C)``; y whole numbers or text for
              classes, other numbers for regression, ``(N,)`` or ``(N, O)`` after the last step, ``(N, T)`` or
              ``(N, T, O)`` at every step; None for the next step of x. Inputs and numbers to predict are scaled to
              mean 0 and deviation 1, losses are reported in your units, and ``result.predictor()`` predicts in them.
            - A torch Dataset of items ``(x, y)``, x ``(T, C)``: read into memory once, then as arrays.
            - A DataLoader of ``(x, y)`` or ``(x, y, lengths)``, x ``(B, T, C)``: its batches as they come, unscaled.
              Such a run cannot be resumed.
        loss: for data of your own: "cross_entropy", "mse", "mae", "huber", or a function of outputs and targets, as the
            model sees them, to a scalar. Default: cross entropy for classes, mse for numbers.
        metric: for data of your own: "accuracy", "rmse", "mae", or ``(function, "max")`` or ``(function, "min")`` of
            outputs and targets in your units and which is better. Default: accuracy for classes, rmse for numbers.
        validation: for data of your own: the share to hold out, or data in the form of `task`; a DataLoader needs a
            DataLoader. Default: 0.1.
        callbacks: objects of subclasses of `evenflow.lab.training.Callback`, called after updates, validations and
            checkpoints and at the end.
        folder: run folder for config, metrics, probes and checkpoints; None keeps the run in memory.
        resume: continue the run in `folder`, which must have the same settings and task.
        progress: show a progress bar on a terminal once the run takes longer than two seconds.
        settings: any of those below, such as ``steps=1000, batch_size=50, optimizer="adam", lr=1e-3``.

    Raises:
        ValueError: a setting, the model or the folder is not allowed; nothing has been trained or written yet.
        NonFiniteLoss: the loss or gradient became infinite or not a number; the run folder says so and its last
            checkpoint is good.

    The seed decides the batches and the dropout, not the starting weights, which are the model's own. A run that is
    killed at any moment and resumed gives bit-identical results to an uninterrupted one (on a GPU, with an exponential
    or a factorized map, last bits may differ). After Ctrl-C or SIGTERM a run finishes the update under way and its
    validation, and saves; a second Ctrl-C ends it at once, and so does the first under `torchrun`. Under `torchrun`
    each process draws its own batches of `batch_size`, and gradients are averaged.

        >>> model = SequenceModel(create("sgornn", 2, 64), 1)
        >>> result = fit(model, Adding(length=20), steps=1000, optimizer="rmsprop", lr=1e-2)
        >>> result.best_metric < 0.0167, result.best_step
        (True, 1000)

        >>> model = SequenceModel(create("sgornn", 2, 16), 2)
        >>> result = fit(model, (windows, activities), epochs=2, validation=0.2)
        >>> result.predictor().predict(windows).shape
        (30,)
    """
    named, parts = given_parts(settings, checked_callbacks(callbacks))
    chosen = Settings.from_dict(named)
    if isinstance(task, DataLoader):
        if resume:
            raise ValueError(
                "resume needs data that come in the same order again, got a DataLoader: give its Dataset or arrays"
            )
        if "batch_size" in settings:
            raise ValueError(f"batch_size is that of the DataLoader, got {chosen.batch_size} besides")
        if chosen.accumulate > 1:
            raise ValueError(f"accumulate needs data of known size, got a DataLoader and {chosen.accumulate} batches")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not isinstance(task.sampler, DistributedSampler):
            raise ValueError(
                "task must be a Dataset or arrays under torchrun: a DataLoader without a DistributedSampler gives "
                "every process the same sequences"
            )
    own_task = given_task(task, model, loss, metric, validation)
    return fit_settings(model, own_task, chosen, folder, resume=resume, progress=progress, given=parts)


# `help(fit)` and editors show every setting with its default, although they are written down once, in Settings.
_own = [p for p in inspect.signature(fit).parameters.values() if p.kind is not p.VAR_KEYWORD]
_fields = [
    inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
    for field in dataclasses.fields(Settings)
]
fit.__doc__ = f"{inspect.cleandoc(fit.__doc__ or '')}\n\nSettings:\n{SETTINGS_DOC}\n"
fit.__signature__ = inspect.Signature([*_own[:2], *_fields, *_own[2:]], return_annotation="Result")  # type: ignore[attr-defined]


def train(
    config: Mapping[str, Any],
    folder: str | os.PathLike[str] | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Result:
    """Build the task, the system and the model that `config` names, and train.

    Args:
        config: three tables, as config.toml holds them. "task": a name and the task's options. "system": a name, a
            hidden_size and the layer's options. "training": fields of `Settings`, all optional.
        folder: the run folder, new or empty; None keeps the run in memory. Under `torchrun --max-restarts` it may hold
            the same run, which is resumed.
        callbacks: as for `fit`.
        progress: show a progress bar on a terminal.

    Starting weights are drawn from the seed of the training table.

        >>> config = {"task": {"name": "adding"}, "system": {"name": "sgornn", "hidden_size": 16}}
        >>> config["training"] = {"steps": 20}
        >>> train(config, "runs/adding").steps
        20
    """
    task, system, settings = read_config(config)
    check_device(settings.device)
    resume = False
    if folder is not None and restarts():
        resume = earlier_run(Path(folder), task, system, settings) is not None
    if folder is not None and not resume:
        check_unused(folder)
    model = build(task, system, settings.seed)
    given = GivenParts(callbacks=checked_callbacks(callbacks))
    return fit_settings(model, task, settings, folder, system=system, resume=resume, progress=progress, given=given)


def resume(
    folder: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    steps: int | None = None,
    allow_changes: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Result:
    """Resume a run of `train` that was killed, interrupted or failed; a finished run is read from its folder.

    On the same machine the result is bit-identical to that of an uninterrupted run; on a GPU, with an exponential or a
    factorized map, last bits may differ.

    Args:
        folder: the run folder.
        data: where the data is now, if it has moved: the data folder, or a file of the user's own or its folder.
        steps: make this many updates in all, more than the run began with. With a constant, exponential or step
            schedule the weights are those of a run with as many from the start; a warning says what a schedule does
            that depends on the number of updates.
        allow_changes: settings that may differ in config.toml from what they were at the checkpoint, such as
            ``["patience"]``. Any other difference is an error, but for device, logger and the place of the data.
        callbacks: those that the run began with.
        progress: show a progress bar on a terminal.

    >>> config = {"task": {"name": "adding"}, "system": {"name": "gru", "hidden_size": 8}, "training": {"steps": 20}}
    >>> result = train(config, "runs/adding")
    >>> resume("runs/adding", steps=30).steps  # ten updates more
    30
    """
    allow_changes_of(folder, allow_changes)
    run = Run(folder)
    if "system" not in run.config:
        raise ValueError(
            f"run {str(folder)!r} was made by fit with a model of its own: "
            "call fit(model, task, folder=..., resume=True) with that model"
        )
    config = run.config if steps is None else longer_config(run, steps)
    task, system, settings = read_config(relocate_data(config, data))
    model = build(task, system, settings.seed)
    if steps is not None:
        lengthen(run, config, task)
    given = GivenParts(callbacks=checked_callbacks(callbacks))
    return fit_settings(model, task, settings, folder, system=system, resume=True, progress=progress, given=given)


def checked_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """The callbacks; a ValueError if one of them is none."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ValueError(f"callbacks must be objects of subclasses of Callback, got {callback!r}")
    return tuple(callbacks)


def fit_settings(
    model: nn.Module,
    task: Task,
    settings: Settings,
    folder: str | os.PathLike[str] | None = None,
    *,
    system: Mapping[str, Any] | None = None,
    resume: bool = False,
    progress: bool = True,
    given: GivenParts = NOTHING_GIVEN,
) -> Result:
    """`fit` with a `Settings`; `system` is the table that the model was built from, for config.toml."""
    check_device(settings.device)
    table = checked_tables(model, task, settings, folder, system, resume, given)
    was_training = model.training
    fabric = launch(settings)
    check_stop(fabric)
    handlers = signal_handlers() if fabric.world_size == 1 else nullcontext()
    with handlers, open_run(fabric, model, task, settings, folder, table, resume, given) as loop:
        try:
            with status_written(loop), ends_together(fabric, folder):
                loop.run(progress)
            result = finish_run(loop, folder)
            loop.callbacks.at_end(result)
            return result
        finally:
            model.train(was_training)


def train_or_resume(
    folder: Path,
    task: Task,
    system: Mapping[str, Any],
    settings: Settings,
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Run:
    """The run in `folder` after it has been trained or resumed, or as it is if it has ended.

    A run that diverges is an outcome, which its folder holds, and no error.
    """
    earlier = earlier_run(folder, task, system, settings)
    if earlier is None or not earlier.ended:
        model, resume = build(task, system, settings.seed), earlier is not None
        given = GivenParts(callbacks=checked_callbacks(callbacks))
        with suppress(NonFiniteLoss):
            fit_settings(model, task, settings, folder, system=system, resume=resume, progress=progress, given=given)
    return Run(folder)


def earlier_run(folder: Path, task: Task, system: Mapping[str, Any], settings: Settings) -> Run | None:
    """The run in `folder`, None if there is none; a ValueError if it has another task, system or setting.

    Its device and the place of its data may differ.
    """
    if not (folder / CONFIG).is_file():
        return None
    run, table = Run(folder), config_tables(task, settings, system)
    check_data(run, task, table)
    try:
        check_same(run, table, settings)
    except ValueError as error:
        raise ValueError(f"{error}: choose another folder") from None
    return run


def checked_tables(
    model: nn.Module,
    task: Task,
    settings: Settings,
    folder: str | os.PathLike[str] | None,
    system: Mapping[str, Any] | None,
    resume: bool,
    given: GivenParts = NOTHING_GIVEN,
) -> dict[str, Any]:
    """Check all arguments of a run before it starts, and return the tables of its config.toml."""
    check_loggers(settings.logger, given.loggers, folder)
    if folder is None and resume:
        raise ValueError("resume needs the folder of the run, got folder None")
    if folder is not None and not resume:
        check_unused(folder)
    table = config_tables(task, settings, system)
    earlier = Run(folder) if folder is not None and resume else None
    if earlier is not None:
        check_data(earlier, task, table)
    check_model(model, task, settings, given)
    settings.for_task(task)
    if earlier is not None:
        check_same(earlier, table, settings)
    return table
