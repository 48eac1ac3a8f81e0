"""Base of the tasks with a finite set of sequences, divided into a training, a validation and a test part."""

from __future__ import annotations

import copy
import dataclasses
from abc import abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from evenflow.checks import whole_number
from evenflow.lab.data import CATALOG, data_folder

from .task import Batch, Position, Task, move

PARTS = ("training", "validation", "test")
FILE_PARTS = {"training": "train", "validation": "valid", "test": "test"}  # their names in the files of some data sets
SPLIT_SEED = 1
HOST = torch.device("cpu")


@dataclass(frozen=True)
class DataSet(Task):
    """A finite set of sequences. A subclass implements `count` and `take`.

    An epoch is a new random order of the training part, drawn from the run's seed and cut into batches. Sequences that
    do not fill a last batch are left out of that epoch. Several processes take different sequences of the same order.
    If the set is smaller than a batch, the batch is the whole set; if it is smaller than the batches of all processes,
    each of them takes an equal share of it. A validation uses every sequence of the validation part once.

    >>> task = Digits()  # a subclass
    >>> task.count(), task.held_out().count()
    (1500, 297)
    """

    part: str = dataclasses.field(default="training", init=False, repr=False)

    @abstractmethod
    def count(self) -> int:
        """The number of sequences in this part."""

    @abstractmethod
    def take(self, rows: Tensor) -> Batch:
        """The sequences with these numbers ``(B,)`` int64, on the device of `rows`."""

    def has_test(self) -> bool:
        """Whether there is a test part."""
        return True

    def held_out(self) -> Task:
        return self.in_part("validation") if self.part == "training" else self

    def test(self) -> Task | None:
        return self.in_part("test") if self.has_test() else None

    def in_part(self, part: str) -> Self:
        """The same task over another part."""
        other = copy.copy(self)
        object.__setattr__(other, "part", part)
        return other

    def picture(self, sequence: np.ndarray) -> np.ndarray | None:
        """A sequence ``(T, I)`` as the image ``(height, width)`` that it was, None if it was none."""
        return None

    def sequence_name(self, number: int) -> str:
        """Where a sequence of this part is from, such as "walk-1 in motion.csv"; empty if nothing more is known."""
        return ""

    def source(self) -> Hashable:
        """What the sequences are read from. Caches keep what they read from one source apart from another."""
        return None

    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> Batch:
        whole_number("size", size, 1)
        rows = torch.randperm(self.count(), generator=generator, device=generator.device)[:size]
        return move(self.take(rows), device)

    def epoch_steps(self, size: int, processes: int = 1) -> int | None:
        return max(1, self.count() // (size * processes))

    def training_batch(self, size: int, position: Position, generator: torch.Generator) -> Batch:
        rows = self.rows(size, position, generator.device)
        return self.take_without_waiting(rows, rows if rows.device == HOST else self.rows(size, position, HOST))

    def rows(self, size: int, position: Position, device: torch.device) -> Tensor:
        """The numbers of the sequences in the batch of one update in one process."""
        steps = self.epoch_steps(size, position.processes)
        assert steps is not None
        epoch, index = divmod(position.step, steps)
        order = _order(self.count(), position.seed, epoch, device)
        share = min(size, max(1, len(order) // position.processes))
        first = (index * position.processes + position.rank) * share % len(order)
        return order[first : first + share]

    def every_batch(self, size: int, position: Position, device: torch.device) -> Iterator[Batch]:
        for first in range(position.rank * size, self.count(), size * position.processes):
            last = min(first + size, self.count())
            yield self.take_without_waiting(torch.arange(first, last, device=device), torch.arange(first, last))

    def take_without_waiting(self, rows: Tensor, host_rows: Tensor) -> Batch:
        """`take`, given the numbers on the CPU too: a shape that depends on them need not wait for a GPU."""
        return self.take(rows)


@dataclass(frozen=True)
class FileData(DataSet):
    """A data set that is read from the data folder."""

    data: str | None = dataclasses.field(
        default=None, kw_only=True, metadata={"help": "the data folder; $EVENFLOW_DATA or the user's cache by default"}
    )

    @property
    def folder(self) -> Path:
        """The data folder."""
        return data_folder(self.data)

    def source(self) -> Path:
        return self.folder  # $EVENFLOW_DATA may change while the task stays equal


def require(name: str, folder: Path) -> None:
    """Check that a data set of the catalogue is in the data folder.

    Raises:
        ValueError: it is missing; the message says how to get it.
    """
    from evenflow.lab.data.fetch import state

    source = CATALOG.get(name)
    if source is not None and (status := state(source, folder)).word == "missing":
        where = f"{status.reason} in the data folder {str(folder)!r}"
        raise ValueError(f"the data set {name} is not there ({where}): {source.remedy(folder)}")


def split(count: int, held_out: int, seed: int = SPLIT_SEED) -> tuple[np.ndarray, np.ndarray]:
    """The numbers below `count`, divided into those to train on and `held_out` for validation, in a fixed random order.

    The order is the same on every machine: numpy has frozen the stream of `RandomState`.
    """
    shuffled = np.random.RandomState(seed).permutation(count)
    return shuffled[held_out:], shuffled[:held_out]


def stratified_split(labels: np.ndarray, every: int, seed: int = SPLIT_SEED) -> tuple[np.ndarray, np.ndarray]:
    """The positions in `labels` to train on, and one in `every` for validation: the same share of each class, to one.

    A class of at least `every` sequences is in both parts, one of two or more at least in the training part, and a
    class of one sequence in the training part alone.

    >>> training, validation = stratified_split(np.array([0] * 10 + [1] * 5), every=5)
    >>> len(validation)
    3
    """
    random = np.random.RandomState(seed)
    shuffled = random.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    alone = np.bincount(labels)[labels[by_class]] == 1
    # Sequences of one class are neighbours, so that taking every fifth takes a fifth of each class.
    held_out = by_class[~alone][random.randint(every) :: every]
    training = shuffled[~np.isin(shuffled, held_out)]
    return training, held_out


@lru_cache(maxsize=128)  # an entry each on the GPU and the CPU, for up to 64 runs that train side by side
def _order(count: int, seed: int, epoch: int, device: torch.device) -> Tensor:
    """The order of an epoch, the same in every process, on every device and after a resumption."""
    if device != HOST:
        return _order(count, seed, epoch, HOST).to(device)
    return torch.randperm(count, generator=torch.Generator().manual_seed((seed + epoch) % 2**63))
