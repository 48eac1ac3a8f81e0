"""Training batches that are drawn afresh: on a GPU those of several updates at once.

A batch is a dozen small kernels, and starting them takes longer than running them. Drawn for sixteen updates in one go
they cost a sixteenth.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from evenflow.tasks import Batch, Position, Task

UPDATES = 16
MOST_NUMBERS = 2**24  # in the inputs of one block: 64 MB

Seed = Callable[[int], int]


class Drawing:
    """The batch of every update of a run, from nothing but the update's number.

    Args:
        task: what is trained on.
        size: sequences in a batch.
        generator: draws them, on its device.
        seed: the generator's seed from the number of an update.
        together: draw for several updates at once where the task lets batches be drawn in any order; not meant for a
            CPU, where it gains nothing.
    """

    def __init__(self, task: Task, size: int, generator: torch.Generator, seed: Seed, together: bool) -> None:
        self._task, self._size, self._generator, self._seed = task, size, generator, seed
        self._first = -1
        self._block: Batch | None = None
        kind = type(task)
        # A task that is harder later, reads on or is passed over in epochs has a word to say about every batch.
        afresh = kind.training_batch is Task.training_batch and kind.at_step is Task.at_step and not task.carries
        endless = task.epoch_steps(size) is None
        self._updates: int | None = None if together and afresh and endless else 1

    def batch(self, position: Position) -> Batch:
        """The batch of the update at this position."""
        step = position.step
        if self._updates is None:
            self._generator.manual_seed(self._seed(0))
            numbers = self._task.batch(self._size, self._generator).inputs.numel()
            self._updates = max(1, min(UPDATES, MOST_NUMBERS // max(1, numbers)))
        if self._updates == 1:
            self._generator.manual_seed(self._seed(step))
            return self._task.training_batch(self._size, position, self._generator)
        first = step - step % self._updates
        if self._block is None or self._first != first:
            self._generator.manual_seed(self._seed(first))
            self._first, self._block = first, self._task.batch(self._size * self._updates, self._generator)
        return _part(self._block, (step - first) * self._size, self._size, self._task.readout == "every")


def _part(block: Batch, begin: int, size: int, every: bool) -> Batch:
    """The sequences from `begin` on."""
    lengths = None if block.lengths is None else block.lengths.narrow(0, begin, size)
    targets = block.targets.narrow(1 if every else 0, begin, size)
    return type(block)(block.inputs.narrow(1, begin, size), targets, lengths)
