"""What tasks share that have a finite set of sequences, in a training, a validation and a test part."""

from __future__ import annotations

import copy
import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evenflow.checks import whole_number
from evenflow.lab.data import CATALOG, data_folder

from .task import Batch, Position, Task, move

PARTS = ("training", "validation", "test")
SPLIT_SEED = 1
HOST = torch.device("cpu")


@dataclass(frozen=True)
class DataSet(Task):
    """A finite set of sequences. A subclass says how many a part has (`count`) and what some of them are (`take`).

    Training passes over the set in epochs: each is a new random order, drawn from the run's seed, cut into batches; the
    few sequences left over when the size does not divide the set sit out that epoch. With several processes each takes
    its own sequences of the same order. A set smaller than a batch is one batch. Validations look at every sequence of
    the validation part once.
    """

    part: str = dataclasses.field(default="training", init=False, repr=False)

    @abstractmethod
    def count(self) -> int:
        """How many sequences this part has."""

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

    def in_part(self, part: str) -> Task:
        """The same task over another part."""
        other = copy.copy(self)
        object.__setattr__(other, "part", part)
        return other

    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> Batch:
        whole_number("size", size, 1)
        rows = torch.randperm(self.count(), generator=generator, device=generator.device)[:size]
        return move(self.take(rows), device)

    def epoch_steps(self, size: int, processes: int = 1) -> int | None:
        return max(1, self.count() // (size * processes))

    def training_batch(self, size: int, position: Position, generator: torch.Generator) -> Batch:
        rows = self.rows(size, position, generator.device)
        return self.numbered(rows, rows if rows.device == HOST else self.rows(size, position, HOST))

    def rows(self, size: int, position: Position, device: torch.device) -> Tensor:
        """The numbers of the sequences in the batch of one update of one process."""
        steps = self.epoch_steps(size, position.processes)
        assert steps is not None
        epoch, index = divmod(position.step, steps)
        order = _order(self.count(), position.seed, epoch, device)
        first = (index * position.processes + position.rank) * size
        if len(order) < size * position.processes:
            first = 0
        return order[first : first + size]

    def every_batch(self, size: int, position: Position, device: torch.device) -> Iterator[Batch]:
        for first in range(position.rank * size, self.count(), size * position.processes):
            last = min(first + size, self.count())
            yield self.numbered(torch.arange(first, last, device=device), torch.arange(first, last))

    def numbered(self, rows: Tensor, on_host: Tensor) -> Batch:
        """`take` where the numbers are known on the host too, for what need not wait for a GPU then."""
        return self.take(rows)


@dataclass(frozen=True)
class FileData(DataSet):
    """A data set read from the data folder."""

    data: str | None = dataclasses.field(
        default=None, kw_only=True, metadata={"help": "the data folder; $EVENFLOW_DATA or the user's cache by default"}
    )

    @property
    def folder(self) -> Path:
        """Where the files are read from."""
        return data_folder(self.data)


def need(source: str, folder: Path) -> None:
    """A ValueError that says how to get a data set of the catalogue, if it is not in the folder."""
    from evenflow.lab.data.fetch import state

    known = CATALOG.get(source)
    if known is not None and (found := state(known, folder)).word == "missing":
        where = f"{found.reason} in the data folder {str(folder)!r}"
        raise ValueError(f"the data set {source} is not there ({where}): {known.remedy(folder)}")


def split(count: int, held_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers below `count` for training and for validation, in a random order that is the same on every machine."""
    # RandomState's stream is frozen for good.
    shuffled = np.random.RandomState(SPLIT_SEED).permutation(count)
    return shuffled[held_out:], shuffled[:held_out]


# Twice as many as runs that may train side by side, each in its own order, which a GPU and the host both know.
@lru_cache(maxsize=128)
def _order(count: int, seed: int, epoch: int, device: torch.device) -> Tensor:
    """The order of an epoch, the same in every process, on every device and after a resumption."""
    if device != HOST:
        return _order(count, seed, epoch, HOST).to(device)
    return torch.randperm(count, generator=torch.Generator().manual_seed((seed + epoch) % 2**63))
