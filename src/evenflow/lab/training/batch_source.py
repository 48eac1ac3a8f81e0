"""Training batches; on a GPU those of several updates are drawn at once.

Drawing a batch takes a dozen small kernels, which take longer to launch than to run. Drawing the batches of sixteen
updates at once takes as many launches.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from evenflow.lab.tasks import Batch, DataSet, Position, Task

UPDATES = 16
MOST_NUMBERS = 2**24  # in the inputs of one block: 64 MB

Seed = Callable[[int], int]


class BatchSource:
    """The batch of every update of a run, as a function of the update's number alone.

    Args:
        task: what is trained on.
        size: sequences in a batch.
        generator: draws them, on its device.
        seed: from the number of an update to the generator's seed.
        blocks: draw the batches of several updates at once if the task allows any order. Gains nothing on a CPU.
            Generated batches then differ from those drawn one by one; batches of a data set are the same.
    """

    def __init__(self, task: Task, size: int, generator: torch.Generator, seed: Seed, blocks: bool) -> None:
        self._task, self._size, self._generator, self._seed = task, size, generator, seed
        self._first = -1
        self._block: Batch | None = None
        self._updates: int | None = None if blocks and self._any_order() else 1

    def _any_order(self) -> bool:
        """Whether batches can be drawn in any order: not if they get harder, or continue each other's sequences."""
        kind = type(self._task)
        if isinstance(self._task, DataSet):
            return kind.training_batch is DataSet.training_batch and self._task.count() >= self._size
        generated = kind.training_batch is Task.training_batch and kind.at_step is Task.at_step
        return generated and not self._task.carries and self._task.epoch_steps(self._size) is None

    def batch(self, position: Position) -> Batch:
        """The batch of the update at this position."""
        step = position.step
        if self._updates is None:
            self._updates = self._block_size(self._one(position))
        if self._updates == 1:
            return self._one(position)
        first = step - step % self._updates
        if self._block is None or self._first != first:
            self._first, self._block = first, self._several(position._replace(step=first), self._updates)
        return _part(self._block, (step - first) * self._size, self._size, self._task.readout == "every")

    def _block_size(self, batch: Batch) -> int:
        """The number of batches like this one in a block. Ragged batches of a data set differ in length: no blocks."""
        if isinstance(self._task, DataSet) and (batch.lengths is not None or batch.inputs.shape[1] != self._size):
            return 1
        return max(1, min(UPDATES, MOST_NUMBERS // max(1, batch.inputs.numel())))

    def _one(self, position: Position) -> Batch:
        self._generator.manual_seed(self._seed(position.step))
        return self._task.training_batch(self._size, position, self._generator)

    def _several(self, position: Position, updates: int) -> Batch:
        steps = range(position.step, position.step + updates)
        if isinstance(self._task, DataSet):
            device = self._generator.device
            rows = [self._task.rows(self._size, position._replace(step=step), device) for step in steps]
            return self._task.take(torch.cat(rows))
        self._generator.manual_seed(self._seed(position.step))
        return self._task.batch(self._size * updates, self._generator)


def _part(block: Batch, begin: int, size: int, every: bool) -> Batch:
    """The sequences from `begin` on."""
    lengths = None if block.lengths is None else block.lengths.narrow(0, begin, size)
    targets = block.targets.narrow(1 if every else 0, begin, size)
    return type(block)(block.inputs.narrow(1, begin, size), targets, lengths)
