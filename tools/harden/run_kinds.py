"""Every kind of run that can be killed: each begins in a folder, or goes on with what it finds there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evenflow.lab import recipes
from evenflow.lab.sweep import Axes, Rules, sweep
from evenflow.lab.sweep.compare import compare
from evenflow.lab.training import NonFiniteLoss, Run, resume, train
from evenflow.lab.training.optimizers import OPTIMIZERS
from evenflow.lab.training.seed_folders import SEEDS, resumed_folders, seed_folder, seeds_written
from evenflow.lab.training.settings import OWN_METHODS
from evenflow.lab.training.train_population import train_population
from evenflow.penalties import PENALTIES

Config = dict[str, dict[str, Any]]

TASK = {"name": "adding", "length": 6}
SYSTEM = {"name": "rnn", "hidden_size": 4}
TRAINING = {
    "steps": 8,
    "batch_size": 2,
    "lr": 0.01,
    "log_every": 2,
    "validate_every": 3,
    "validation_batches": 1,
    "checkpoint_every": 3,
    "device": "cpu",
}


@dataclass(frozen=True)
class RunKind:
    """A kind of run.

    Attributes:
        name: for reports.
        sitting: begins or continues the run in a folder, and returns when it has ended.
    """

    name: str
    sitting: Callable[[Path], object]


def config(system: Mapping[str, Any] | None = None, task: Mapping[str, Any] | None = None, **training: Any) -> Config:
    """A config of a few small updates."""
    tables = {"task": TASK if task is None else task, "system": SYSTEM | dict(system or {})}
    return copy.deepcopy({**tables, "training": TRAINING | training})  # type: ignore[dict-item]


def _single(table: Config, folder: Path) -> None:
    if (folder / "config.toml").exists():
        resume(folder, progress=False)
    else:
        train(table, folder, progress=False)


def _seeds(table: Config, folder: Path, seeds: Sequence[int] = (0, 1, 2)) -> None:
    """As `evenflow train --seeds` and `evenflow resume` do."""
    if (folder / SEEDS).is_file():
        folders = resumed_folders(folder)
        results = train_population([Run(each).config for each in folders], folders, resume=True, progress=False)
    else:
        configs = [table | {"training": table["training"] | {"seed": seed}} for seed in seeds]
        with seeds_written(folder, table, seeds):
            places = [seed_folder(folder, seed) for seed in seeds]
            results = train_population(configs, places, progress=False)
    if all(isinstance(result, NonFiniteLoss) for result in results):
        raise AssertionError("all seeds diverged")


def _sweep(folder: Path) -> None:
    axes = Axes(maps=["rotations"], cells=["elman"], activations=["relu", "abs"], hidden=[4], lrs=[0.01, 1e-9])
    training = {"batch_size": 4, "validation_batches": 1, "device": "cpu"}
    rules = Rules(updates=40, first=2, keep=0.5, finalists=1, seeds=2)
    sweep(TASK, axes, rules, folder, training=training, progress=False)


def _compare(folder: Path) -> None:
    systems = [SYSTEM, {"name": "urnn", "hidden_size": 4}]
    training = {name: value for name, value in TRAINING.items() if name != "lr"}
    compare(TASK, systems, training, [0.01, 0.001], folder, progress=False)


RECIPE: dict[str, Any] = {
    "document": "made",
    "name": "table-1",
    "title": "A made table",
    "measures": "Nothing of interest.",
    "seeds": [1, 2],
    "columns": [{"name": "error", "measure": "best_loss", "better": "lower", "tolerance": 10.0}],
    "rows": [
        {"label": "plain", "system": {"name": "rnn"}, "published": {"error": 0.2}},
        {"label": "unitary", "system": {"name": "urnn"}, "published": {"error": 0.1}},
    ],
    "task": TASK,
    "system": {"hidden_size": 4},
    "training": TRAINING | {"steps": 6},
    "quick": {"training": {"steps": 4}, "note": "Quick: 4 updates."},
}


def _reproduce(folder: Path) -> None:
    recipes.reproduce(recipes.parse(copy.deepcopy(RECIPE)), "quick", folder=folder, progress=False)


def _methods() -> dict[str, Config]:
    made = {name: config(optimizer=name) for name in OPTIMIZERS}
    made["sgd"]["training"] |= {"momentum": 0.9, "nesterov": True}
    own = {name: config(optimizer=name) for name in OWN_METHODS}
    own["hessian-free"]["training"].pop("lr")
    bases = {f"bases {how}": config({"name": "factorized"}, bases=how, bases_lr=0.01) for how in ("sgd", "adam")}
    return made | own | bases


SINGLE: dict[str, Config] = {
    **_methods(),
    **{f"penalty {name}": config({"name": "urnn"} if name == "singular_value_prior" else None, penalty=name)
       for name in PENALTIES},
    "dropout": config({"name": "urnn", "num_layers": 2, "dropout": 0.3}, probe_every=2, schedule="linear"),
    "plateau": config(schedule="plateau", decay_patience=1, validate_every=1),
    "patience": config(lr=1e-9, patience=1, validate_every=2, optimizer="sgd"),
    "clipped": config({"name": "lstm", "recurrent_dropout": 0.3}, clip_norm=0.1),
}  # fmt: skip

POPULATIONS: dict[str, Config] = {
    "plain": config(),
    "dropout": config({"output_dropout": 0.3, "num_layers": 2, "dropout": 0.3}),
    "recurrent dropout": config({"name": "lstm", "recurrent_dropout": 0.3, "zoneout": [0.1, 0.2]}),
    "penalty": config(penalty="weight_decay(0.1)", optimizer="rmsprop"),
    "bases": config({"name": "factorized", "output_dropout": 0.3}, bases_lr=0.01),
    "probes": config({"name": "urnn", "output_dropout": 0.3}, probe_every=2),
    "early stopping": config({"output_dropout": 0.3}, patience=1, validate_every=1, lr=0.3, steps=12, optimizer="sgd"),
}

KINDS: dict[str, RunKind] = {
    kind.name: kind
    for kind in (
        *(RunKind(name, partial(_single, table)) for name, table in SINGLE.items()),
        *(RunKind(f"seeds, {name}", partial(_seeds, table)) for name, table in POPULATIONS.items()),
        RunKind("sweep", _sweep),
        RunKind("compare", _compare),
        RunKind("reproduce", _reproduce),
    )
}
