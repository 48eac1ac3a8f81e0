"""A cost model of training runs: seconds from the time steps, the updates and the arithmetic of a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Training sequences of the data sets, for tasks counted in epochs; ptb-words is one stream.
SEQUENCES = {
    "mnist": 55_000, "har": 6_617, "har-rebuilt": 6_617, "har-subset": 2_160, "music": 524, "multilabel": 4_392,
    "ucr": 140, "digits": 1_500,
}  # fmt: skip
CHARACTERS = {75: 9_855, 300: 41_802}
TREEBANK_WORDS, TREEBANK_TYPES = 929_589, 10_000
STEPS = {"har": 128, "har-rebuilt": 128, "har-subset": 128, "music": 470, "multilabel": 1, "ucr": 60, "digits": 64}
GATES = {"lstm": 4, "lstm-peephole": 4, "lstm-1997": 3, "gru": 3, "ugru": 3, "arjovsky-urnn": 2, "full-urnn": 2}
METHODS = {"temporal-simplex": 3.0, "hessian-free": 60.0}  # time of an update relative to one backward pass


@dataclass(frozen=True)
class MachineSpeed:
    """Speed of a machine: operations per second, and fixed seconds per time step and per update."""

    operations: float
    step: float
    update: float


CPU = MachineSpeed(6e10, 1.2e-5, 1.5e-3)  # two cores
GPU = MachineSpeed(5e13, 5e-7, 3e-4)  # an H200


def training_seconds(config: Mapping[str, Mapping[str, Any]], machine: MachineSpeed = CPU) -> float:
    """Seconds of one run: updates × (a fixed cost + time steps × (a fixed cost + arithmetic))."""
    task, system, training = (config[name] for name in ("task", "system", "training"))
    batch, hidden = int(training.get("batch_size", 50)), int(system["hidden_size"])
    steps, layers = time_steps(task), int(system.get("num_layers", 1))
    if "depth" in system:
        steps, layers = 1, int(system["depth"])
    readout = TREEBANK_TYPES if task["name"] == "ptb-words" else 60
    per_step = GATES.get(str(system["name"]), 1) * hidden * 2 * hidden * layers + hidden * readout
    arithmetic = 6 * batch * steps * per_step + 40 * hidden**3 * (layers if "depth" in system else 1)
    seconds = machine.update + arithmetic / machine.operations + machine.step * steps * layers
    validations = float(training.get("validation_batches") or 10) / float(training.get("validate_every", 100))
    factor = METHODS.get(str(training.get("optimizer")), 1.0)
    return updates(task, training) * seconds * (1 + 0.4 * min(1.0, validations)) * factor + 1.5


def time_steps(task: Mapping[str, Any]) -> int:
    """Time steps of a sequence."""
    name = str(task["name"])
    if name == "mnist":
        return 784 // int(task.get("width", 1))
    if name == "copy":
        return int(task.get("length", 100)) + 2 * int(task.get("items", 10))
    if name == "ptb-characters":
        return int(0.7 * int(task.get("longest", 75)))
    return STEPS.get(name, int(task.get("length", 100)))


def updates(task: Mapping[str, Any], training: Mapping[str, Any]) -> int:
    """Updates of a run; epochs are counted by the sizes of the data sets."""
    if "epochs" not in training:
        return int(training.get("steps", 1000))
    batch, name = int(training.get("batch_size", 50)), str(task["name"])
    if name == "ptb-words":
        per_epoch = TREEBANK_WORDS // batch // int(task.get("length", 35))
    elif name == "ptb-characters":
        per_epoch = CHARACTERS.get(int(task.get("longest", 75)), 20_000) // batch
    else:
        per_epoch = SEQUENCES.get(name, 1000) // batch
    return int(training["epochs"]) * max(1, per_epoch)
