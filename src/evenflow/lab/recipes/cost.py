"""How long a recipe takes, before it has run: a cost model, or a measured time where the recipe records one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .configs import Job, Plan, plan
from .measures import MEASURES
from .schema import Recipe

# Training sequences, for tasks counted in epochs; the words of ptb-words are a stream.
SEQUENCES = {
    "mnist": 55_000, "har": 6_617, "har-rebuilt": 6_617, "har-subset": 2_160, "music": 524, "multilabel": 4_392,
    "ucr": 140, "digits": 1_500,
}  # fmt: skip
CHARACTERS = {75: 10_603, 300: 41_900}
TREEBANK_WORDS, TREEBANK_TYPES = 929_589, 10_000
STEPS = {"har": 128, "har-rebuilt": 128, "har-subset": 128, "music": 470, "multilabel": 1, "ucr": 60, "digits": 64}
GATES = {"lstm": 4, "lstm-peephole": 4, "lstm-1997": 3, "gru": 3, "ugru": 3, "arjovsky-urnn": 2, "full-urnn": 2}
METHODS = {"temporal-simplex": 3.0, "hessian-free": 60.0}  # against one backward pass


@dataclass(frozen=True)
class Machine:
    """name; operations a second; seconds for each time step of an update, and for each update."""

    name: str
    speed: float
    step: float
    update: float


CPU = Machine("two CPU cores", 6e10, 1.2e-5, 1.5e-3)
GPU = Machine("an H200", 5e13, 5e-7, 3e-4)


def estimate(recipe: Recipe, scale: str) -> tuple[float, str]:
    """Seconds that a scale of a recipe takes, and "measured" or "model".

    quick is for two CPU cores, full for an H200. Every learning rate is counted, although a search may end early.
    """
    known = recipe.scale(scale).seconds
    if known is not None:
        return known, "measured"
    from pathlib import Path

    jobs: Plan = plan(recipe, scale, Path())
    return sum(seconds(job, recipe, CPU if scale == "quick" else GPU) for job in jobs.jobs()), "model"


def seconds(job: Job, recipe: Recipe, machine: Machine = CPU) -> float:
    """Seconds of one run: updates × (a fixed cost + time steps × (a fixed cost + arithmetic))."""
    if not any(MEASURES[column.measure].trains for column in recipe.columns):
        return 1.0
    task, system, training = (job.config[name] for name in ("task", "system", "training"))
    batch, hidden = int(training.get("batch_size", 50)), int(system["hidden_size"])
    steps, layers = time_steps(task), int(system.get("num_layers", 1))
    if "depth" in system:
        steps, layers = 1, int(system["depth"])
    readout = TREEBANK_TYPES if task["name"] == "ptb-words" else 60
    each = GATES.get(str(system["name"]), 1) * hidden * 2 * hidden * layers + hidden * readout
    arithmetic = 6 * batch * steps * each + 40 * hidden**3 * (layers if "depth" in system else 1)
    once = machine.update + arithmetic / machine.speed + machine.step * steps * layers
    looks = 1 + 0.4 * _validated(training)
    return updates(task, training) * once * looks * METHODS.get(str(training.get("optimizer")), 1.0) + 1.5


def _validated(training: Mapping[str, Any]) -> float:
    """Batches of a validation for each update."""
    batches = training.get("validation_batches") or 10
    return min(1.0, float(batches) / float(training.get("validate_every", 100)))


def time_steps(task: Mapping[str, Any]) -> int:
    """Steps of a sequence."""
    name = str(task["name"])
    if name == "mnist":
        return 784 // int(task.get("width", 1))
    if name == "copy":
        return int(task.get("length", 100)) + 2 * int(task.get("items", 10))
    if name == "ptb-characters":
        return int(0.7 * int(task.get("longest", 75)))
    return STEPS.get(name, int(task.get("length", 100)))


def updates(task: Mapping[str, Any], training: Mapping[str, Any]) -> int:
    """Updates of a run; epochs by the known sizes of the data sets."""
    if "epochs" not in training:
        return int(training.get("steps", 1000))
    batch, name = int(training.get("batch_size", 50)), str(task["name"])
    if name == "ptb-words":
        each = TREEBANK_WORDS // batch // int(task.get("length", 35))
    elif name == "ptb-characters":
        each = CHARACTERS.get(int(task.get("longest", 75)), 20_000) // batch
    else:
        each = SEQUENCES.get(name, 1000) // batch
    return int(training["epochs"]) * max(1, each)


def rough(value: float) -> str:
    """A time in two digits: 45 s, 12 min, 3.5 h, 2 days."""
    if value < 90:
        return f"{max(1, round(value))} s"
    if value < 5400:
        return f"{round(value / 60)} min"
    hours = value / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{round(hours)} h" if hours < 72 else f"{math.ceil(hours / 24)} days"
