"""A whole run from a config, and its resumption from a folder."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from evenflow.checks import unknown, whole_number
from evenflow.feedforward import FeedForward
from evenflow.lab import tasks
from evenflow.lab.tasks import Task
from evenflow.models.flat_model import FlatModel
from evenflow.models.sequence_model import SequenceModel
from evenflow.systems import NETWORKS, create

from .fit import fit_settings
from .launch import check_device
from .lifecycle import placed
from .result import Result
from .run_folder import Run, refuse_used
from .seeds import derive, seed_global
from .settings import Settings
from .tables import DATA

TABLES = ("task", "system", "training")
KEPT = (*TABLES, DATA)  # of a run
DROPS = ("input_dropout", "output_dropout", "score_dropout")
GIVEN = ("width", "linear", "generator", "device", "dtype")  # of a network without time, and not for a config to say
OF_THE_MODEL = ("embedding_range", "readout_units", *DROPS)  # among the options of a system


def train(config: Mapping[str, Any], folder: str | os.PathLike[str] | None = None, *, progress: bool = True) -> Result:
    """Build the task, the system and the model that `config` names, and train.

    Args:
        config: three tables, as config.toml holds them. "task": a name and the task's options. "system": a name, a
            hidden_size and the layer's options. "training": fields of `Settings`, all optional.
        folder: the run's folder, new or empty; None keeps the run in memory.
        progress: show a bar on a terminal.

    Starting weights are drawn from the seed of the training table.

        >>> train({"task": {"name": "adding"}, "system": {"name": "sgornn", "hidden_size": 128}}, "runs/adding")
    """
    task, system, settings = read_config(config)
    check_device(settings.device)
    if folder is not None:
        refuse_used(folder)
    model = build(task, system, settings.seed)
    return fit_settings(model, task, settings, folder, config={"system": dict(system)}, progress=progress)


def resume(
    folder: str | os.PathLike[str], *, data: str | os.PathLike[str] | None = None, progress: bool = True
) -> Result:
    """Go on with a run that `train` began and that was killed, interrupted or failed; a finished run is read back.

    The end is the one the run would have had without the interruption, to the last bit, on the same machine; on a GPU,
    with an exponential or a factorized map, last bits may differ.

    Args:
        data: where its data lies, if no longer where it did: the data folder, or a file of one's own or its folder.
        progress: show a bar on a terminal.
    """
    run = Run(folder)
    if "system" not in run.config:
        raise ValueError(
            f"run {str(folder)!r} was made by fit with a model of its own: "
            "call fit(model, task, folder=..., resume=True) with that model"
        )
    task, system, settings = read_config(placed(run.config, found(data)))
    model = build(task, system, settings.seed)
    return fit_settings(model, task, settings, folder, config={"system": dict(system)}, resume=True, progress=progress)


def found(data: str | os.PathLike[str] | None) -> Path | None:
    """Where data lies, in full, so that a run can be resumed from another folder."""
    return None if data is None else Path(data).expanduser().absolute()


def read_config(config: Mapping[str, Any]) -> tuple[Task, dict[str, Any], Settings]:
    """The task, the system's table and the settings; a ValueError names what is missing or unknown."""
    for name, value in config.items():
        if name not in KEPT:
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


def build(task: Task, system: Mapping[str, Any], seed: int) -> SequenceModel | FlatModel:
    """The model for a task: the system's layer and a readout, with starting weights drawn from `seed`.

    A network without time (`systems.NETWORKS`) sees all steps of a sequence at once; its hidden_size is its width.
    `embedding_range`, `readout_units` and the three dropouts among a system's options are the model's; see
    `SequenceModel`.
    """
    options = dict(system)
    name, hidden_size = options.pop("name"), options.pop("hidden_size")
    own = {} if name in NETWORKS else {key: options.pop(key) for key in OF_THE_MODEL if key in options}
    with torch.random.fork_rng([]):
        seed_global(derive(seed, "weights"), torch.device("cpu"))
        try:
            if name in NETWORKS:
                _check_network(name, options)
                return FlatModel(NETWORKS[name].network(_flat(task), task.output_size, width=hidden_size, **options))
            layer = create(name, task.input_size, hidden_size, **options)
        except TypeError as error:
            raise ValueError(f"system {name} cannot be made with these options: {error}") from error
        return SequenceModel(layer, task.output_size, readout=task.readout, vocabulary=task.vocabulary, **own)


def _check_network(name: str, options: Mapping[str, Any]) -> None:
    """A ValueError for an option that a network without time has not."""
    kinds = [kind for kind in NETWORKS[name].network.__mro__ if issubclass(kind, FeedForward)]
    parameters = [p for kind in kinds for p in inspect.signature(kind).parameters.values()]
    known = dict.fromkeys(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in GIVEN)
    for option in options:
        if option not in known:
            raise ValueError(f"system {name!r} has no option {option!r}; it takes {', '.join(known)}")


def _flat(task: Task) -> int:
    """How many numbers a sequence of the task has in all."""
    if task.readout != "last" or task.vocabulary is not None:
        raise ValueError(f"task {task.name} needs a recurrent system: it is answered at every step or embeds its input")
    batch = task.batch(1, torch.Generator().manual_seed(0))
    if batch.lengths is not None:
        raise ValueError(f"task {task.name} needs a recurrent system: its sequences differ in length")
    return batch.inputs.shape[0] * batch.inputs.shape[2]
