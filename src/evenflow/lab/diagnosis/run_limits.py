"""Refuse the config of a run, which may be somebody else's, that asks for more memory than a diagnosis should take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from evenflow.lab.tasks import Task
from evenflow.lab.tasks.curriculum import Curriculum
from evenflow.lab.tasks.synthetic import Synthetic
from evenflow.lab.training.run_folder import CONFIG

SIZES = ("hidden_size", "num_layers", "readout_units")  # options of a system
MEMORY = 1 << 30  # bytes for sequences, states and gradients
COPIES = 14  # of inputs and states that a diagnosis of an LSTM holds at once, measured; of a plain RNN about 5
BYTES = 4  # of a number


def check_sizes(folder: Path, task: Task, system: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Raise a ValueError for a size in the config that no weight has, before a layer of that size takes the memory."""
    largest = max([len(weights), *(size for weight in weights.values() for size in weight.shape)])
    sizes = {name: system.get(name) for name in SIZES}
    if isinstance(_drawn(task), Synthetic):  # the sizes of other tasks are those of their data
        sizes |= {"inputs of the task": task.input_size, "outputs of the task": task.output_size}
    for name, size in sizes.items():
        if isinstance(size, int) and size > largest:
            raise ValueError(
                f"{name} in {CONFIG} of run {str(folder)!r} must be at most {largest}, the largest size of its "
                f"weights, got {size}"
            )


def affordable_sequences(folder: Path, task: Task, units: int, most: int) -> int:
    """The number of sequences, at most `most`, with which a diagnosis stays within its memory.

    Sequences that are too long for one of them raise a ValueError. Those of a data set are as long as its files say.

    Args:
        units: of all layers.
    """
    drawn = _drawn(task)
    steps = getattr(drawn, "steps", getattr(drawn, "length", 0))
    if not isinstance(drawn, Synthetic) or not steps:
        return most
    numbers = task.input_size + units + (task.output_size if task.readout == "every" else 0)
    needed = steps * numbers * BYTES * COPIES
    if needed > MEMORY:
        raise ValueError(
            f"sequences in {CONFIG} of run {str(folder)!r} must need at most {MEMORY >> 30} GB each, got {steps:,} "
            f"steps, which need about {-(-needed // MEMORY):,} GB: call evenflow.doctor(model, batch) with shorter ones"
        )
    return min(most, MEMORY // needed)


def _drawn(task: Task) -> Task:
    """The task whose sequences a curriculum cuts, or the task itself."""
    return task.task if isinstance(task, Curriculum) else task
