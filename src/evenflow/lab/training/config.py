"""The config of a run: its tables read and checked, and the task and the model built from them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from evenflow import penalties
from evenflow.checks import unknown, whole_number
from evenflow.feedforward import FeedForward
from evenflow.lab import tasks
from evenflow.lab.tasks import Batch, Position, Task
from evenflow.lab.tasks.own_data import OwnData
from evenflow.layers.recurrent import Recurrent
from evenflow.models.flat_model import FlatModel
from evenflow.models.residual_stack import ResidualStack
from evenflow.models.sequence_model import SequenceModel
from evenflow.systems import NETWORKS, create, system_name

from . import evaluation
from .given_parts import NOTHING_GIVEN, OWN, GivenParts
from .method import FULL
from .optimizers import make_optimizer
from .run_folder import Run
from .schedules import make_scheduler
from .seeds import derive, seed_global
from .settings import LINE_SEARCH, OWN_METHODS, Settings
from .special_methods import CurvatureMethod, LineSearchMethod, SimplexMethod

TABLES = ("task", "system", "training")
DATA = "data"  # a fourth table in run folders: the SHA-256 of a file of the user's own
CHANGED = "changed"  # a fifth: the values that settings had before they were changed, see `changed_config`
DROPS = ("input_dropout", "output_dropout", "score_dropout")
HALF = ("bf16-true", "16-true")  # which also convert the inputs
MODEL_OPTIONS = ("embedding_range", "readout_units", "block", *DROPS)  # of the system table, but the model's
BLOCK_OPTIONS = ("num_layers", "dropout")  # the model's too where it has blocks, else the layer's
NETWORK_ARGUMENTS = ("width", "linear", "generator", "device", "dtype")  # of a network without time; not for a config


def read_config(config: Mapping[str, Any]) -> tuple[Task, dict[str, Any], Settings]:
    """The task, the system's table and the settings; a ValueError names what is missing or unknown.

    >>> config = {"task": {"name": "adding"}, "system": {"name": "gru", "hidden_size": 64}, "training": {"lr": 0.01}}
    >>> task, system, settings = read_config(config)
    >>> task.name, settings.lr, settings.optimizer
    ('adding', 0.01, 'adam')
    """
    for name, value in config.items():
        if name not in (*TABLES, DATA, CHANGED):
            raise ValueError(unknown("table of the config", name, TABLES))
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} must be a table of the config, got {value!r}")
    parts = {name: dict(config.get(name, {})) for name in TABLES}
    for name in ("task", "system"):
        if "name" not in parts[name]:
            raise ValueError(f"config must have a table {name} with a name")
    whole_number("hidden_size", parts["system"].get("hidden_size"), 1)
    options = dict(parts["task"])
    return tasks.make(options.pop("name"), **options), parts["system"], Settings.from_dict(parts["training"])


def config_tables(task: Task, settings: Settings, system: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The tables of config.toml: task, system if there is one, training, and data for a file of the user's own."""
    # Without a system the run can only be resumed by `fit`, with the model and the task in hand.
    name = task.name if system is None else task.reference
    return {
        "task": {"name": name, **task.options()},
        **({} if system is None else {"system": system_table(system)}),
        "training": settings.to_dict(),
        **({DATA: {"sha256": task.sha256()}} if isinstance(task, OwnData) else {}),
    }


def system_table(options: Mapping[str, Any]) -> dict[str, Any]:
    """The name and the options of a system as TOML can hold them: without None, and a system of one's own by its path.

    All options that may be None have None as their default, except margin, whose None is written as "none".
    """
    return {
        name: "none" if value is None else value
        for name, value in {**options, "name": system_name(options["name"])}.items()
        if value is not None or name == "margin"
    }


def relocate_data(config: Mapping[str, Any], data: str | os.PathLike[str] | None) -> Mapping[str, Any]:
    """The config of a run whose data has moved: to another data folder, or another path of the user's own file."""
    # The full path, so that the run can be resumed from another working directory.
    return config if data is None else {**config, "task": {**config["task"], "data": str(full_path(data))}}


def full_path(data: str | os.PathLike[str]) -> Path:
    return Path(data).expanduser().absolute()


def check_same(run: Run, table: Mapping[str, Any], settings: Settings) -> None:
    """Raise a ValueError if a run that is resumed has another task, another system or other settings."""
    task, before = table["task"], run.config.get("task", {})
    differs = Settings.from_dict(run.config.get("training", {})).difference(settings)
    if differs is not None:
        value = run.config["training"].get(differs, "its default")
        raise ValueError(
            f"{differs} must stay as the run {str(run.folder)!r} began, {value}, got {getattr(settings, differs)!r}"
        )
    # The data may have moved.
    if {**before, "data": None} != {**task, "data": None}:
        raise ValueError(f"task must stay as the run {str(run.folder)!r} began, {run.config.get('task')}, got {task}")
    # A model that the caller has made comes without a table.
    if "system" in table and run.config.get("system") != (system := table["system"]):
        raise ValueError(
            f"system must stay as the run {str(run.folder)!r} began, {run.config.get('system')}, got {system}"
        )


def check_data(run: Run, task: Task, table: Mapping[str, Any]) -> None:
    """Raise a ValueError if the user's own file is not the one the run began with; old runs do not say which it was."""
    before = run.config.get(DATA, {}).get("sha256")
    if isinstance(task, OwnData) and before is not None and table[DATA]["sha256"] != before:
        if not task.file:
            raise ValueError(
                f"the data differs from that of run {str(run.folder)!r}, its SHA-256 is another: "
                "give the same arrays, or train anew in another folder"
            )
        raise ValueError(
            f"file {task.path!r} is not the one that run {str(run.folder)!r} began with, its SHA-256 differs: "
            "put that file back, or train anew in another folder"
        )


def build(task: Task, system: Mapping[str, Any], seed: int) -> SequenceModel | FlatModel:
    """The model for a task: the system's layer and a readout, with starting weights drawn from `seed`.

    A network without time (`systems.NETWORKS`) sees all steps of a sequence at once; its hidden_size is its width.
    `embedding_range`, `readout_units`, `block` and the three dropouts among a system's options are the model's; see
    `SequenceModel`. With `block` the blocks are hidden_size wide, and `num_layers` and `dropout` are theirs.

    >>> model = build(task, {"name": "sgornn", "hidden_size": 64}, seed=0)
    >>> model.layer.hidden_size, model.readout
    (64, 'last')
    """
    options = dict(system)
    name, hidden_size = options.pop("name"), options.pop("hidden_size")
    own = {} if name in NETWORKS else {key: options.pop(key) for key in MODEL_OPTIONS if key in options}
    with torch.random.fork_rng([]):
        seed_global(derive(seed, "weights"), torch.device("cpu"))
        try:
            if name in NETWORKS:
                _check_network(name, options)
                return FlatModel(NETWORKS[name].network(_flat(task), task.output_size, width=hidden_size, **options))
            width = task.input_size
            if "block" in own:
                width, own["input_size"] = hidden_size, width
                own |= {key: options.pop(key) for key in BLOCK_OPTIONS if key in options}
            layer = create(name, width, hidden_size, **options)
        except TypeError as error:
            raise ValueError(f"system {name} cannot be made with these options: {error}") from error
        if task.column_embeddings:
            own["column_embeddings"] = task.column_embeddings
        return SequenceModel(layer, task.output_size, readout=task.readout, vocabulary=task.vocabulary, **own)


def _check_network(name: str, options: Mapping[str, Any]) -> None:
    """Raise a ValueError for an option that a network without time does not have."""
    kinds = [kind for kind in NETWORKS[name].network.__mro__ if issubclass(kind, FeedForward)]
    parameters = [p for kind in kinds for p in inspect.signature(kind).parameters.values()]
    allowed = dict.fromkeys(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in NETWORK_ARGUMENTS)
    for option in options:
        if option not in allowed:
            raise ValueError(f"system {name!r} has no option {option!r}; it takes {', '.join(allowed)}")


def _flat(task: Task) -> int:
    """The numbers in a whole sequence of the task."""
    if task.readout != "last" or task.vocabulary is not None or task.column_embeddings:
        raise ValueError(f"task {task.name} needs a recurrent system: it is answered at every step or embeds its input")
    batch = task.batch(1, torch.Generator().manual_seed(0))
    if batch.lengths is not None:
        raise ValueError(f"task {task.name} needs a recurrent system: its sequences differ in length")
    return batch.inputs.shape[0] * batch.inputs.shape[2]


def check_model(model: nn.Module, task: Task, settings: Settings, given: GivenParts = NOTHING_GIVEN) -> None:
    """Raise a ValueError if the model's outputs do not have the task's shape, or if the settings cannot train it."""
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise ValueError("model has no parameter to train, at least one must require a gradient")
    layers = getattr(model, "layer", None)
    probed = layers.layers if isinstance(layers, ResidualStack) else [layers]
    if settings.probe_every is not None and not all(isinstance(layer, Recurrent) for layer in probed):
        raise ValueError("probe_every needs a model whose layer is one of evenflow's, because it listens to the states")
    _check_parts(task, settings)
    generator = torch.Generator(parameter.device).manual_seed(derive(settings.seed, "check"))
    batch = task.batch(2, generator)
    size = batch.inputs.shape[1]  # 1 for a data set with a single sequence
    # In the other precisions Fabric converts the inputs, or runs in both dtypes.
    if batch.inputs.is_floating_point() and settings.precision not in ("32-true", "tf32"):
        batch = batch._replace(inputs=batch.inputs.to(parameter.dtype))
    was_training = model.training
    try:
        with torch.no_grad():
            result: Any = evaluation.answer(model.eval(), batch)
    finally:
        model.train(was_training)
    if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[0], torch.Tensor)):
        got = f"a {type(result).__name__}" + (f" of {len(result)}" if isinstance(result, tuple | list) else "")
        raise ValueError(f"model must answer with outputs and a state (or None), as SequenceModel does, got {got}")
    shape = tuple(result[0].shape)
    expected = (size, task.output_size) if task.readout == "last" else (len(batch.inputs), size, task.output_size)
    if shape != expected:
        sequences = "two sequences" if size == 2 else "one sequence"
        raise ValueError(f"model must answer {sequences} of task {task.name} with shape {expected}, got {shape}")
    buffers = [buffer.clone() for buffer in model.buffers()]
    try:
        _check_method(model.train(), task, batch, settings, given)  # in training mode, with dropout
    finally:
        model.train(was_training)
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)


def _check_parts(task: Task, settings: Settings) -> None:
    """Raise a ValueError now, and not after the last update, if a part of a data set is missing or too small."""
    if task.column_embeddings and settings.precision in HALF:
        raise ValueError(f"precision must not be {settings.precision} with embed, whose positions it would round")
    task.epoch_steps(settings.batch_size, settings.accumulate)
    if task.carries and settings.accumulate > 1:
        raise ValueError(
            f"accumulate must be 1 for task {task.name}, whose batches continue each other, got {settings.accumulate}"
        )
    for part in (task.held_out() if settings.validation_batches is None else None, task.test()):
        if part is None:
            continue
        size = settings.batch_size if part.carries else 1
        batches = part.every_batch(size, Position(0, settings.steps), torch.device("cpu"))
        if batches is not None and next(iter(batches), None) is None:
            raise ValueError(f"task {task.name} has nothing to validate or to test on: its data set is too small")


def _check_method(model: nn.Module, task: Task, batch: Batch, settings: Settings, given: GivenParts) -> None:
    """Raise a ValueError if the method cannot train this model; the model stays the same."""
    name = settings.optimizer
    if name not in OWN_METHODS:
        optimizer = make_optimizer(model, settings, given)
        if OWN in settings.schedule and optimizer is not given.optimizer:
            make_scheduler(settings, given, optimizer)
    else:
        if task.carries:
            raise ValueError(f"optimizer {name} starts every batch anew, and task {task.name} reads on")
        if settings.precision not in FULL:
            raise ValueError(f"optimizer {name} needs precision 32-true or 64-true, got {settings.precision}")
    with torch.random.fork_rng([batch.inputs.device] if batch.inputs.is_cuda else []):
        if settings.penalty is not None:
            with penalties.make(settings.penalty).watch(model) as extra:
                extra(task.loss(evaluation.answer(model, batch)[0], batch.targets))
        elif name == "hessian-free":
            CurvatureMethod(model, task, settings).check(batch)
        elif name == LINE_SEARCH:
            LineSearchMethod.check(model, settings)
        elif name == "temporal-simplex":
            SimplexMethod(model, task, settings).backward(batch)
            model.zero_grad()
