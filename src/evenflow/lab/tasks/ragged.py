"""Sequences of different lengths, kept one after the other on a device and padded when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .data_set import HOST, DataSet
from .task import Batch

FINE = 4  # of the lengths of batches on a GPU that lie close together


class Ragged(NamedTuple):
    """Sequences one after the other.

    Shapes:
        values ``(S, ...)``; offsets ``(N + 1,)`` int64: sequence n is ``values[offsets[n]:offsets[n + 1]]``.

    Attributes:
        most: the steps of the longest of them.
    """

    values: Tensor
    offsets: Tensor
    most: int

    @classmethod
    def of(cls, sequences: Sequence[np.ndarray], device: torch.device) -> Ragged:
        """From arrays ``(T_n, ...)``."""
        return cls.cut(np.concatenate(sequences), np.array([len(sequence) for sequence in sequences]), device)

    @classmethod
    def cut(cls, values: np.ndarray, lengths: np.ndarray, device: torch.device) -> Ragged:
        """From one array ``(S, ...)`` and the lengths of the sequences in it ``(N,)``."""
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        most = int(lengths.max(initial=0))
        return cls(torch.from_numpy(values).to(device), torch.from_numpy(offsets).to(device), most)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, rows: Tensor) -> Tensor:
        """Of these sequences ``(B,)``."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def padded(self, rows: Tensor, longest: int | None = None) -> tuple[Tensor, Tensor]:
        """These sequences ``(T, B, ...)``, T as long as the longest, and their lengths ``(B,)``.

        On a GPU T is one of a few lengths, so that what is recorded for one batch serves others. What lies past an end
        is the sequence's last value: whoever asks masks it by the lengths.

        Args:
            rows: which ones.
            longest: the steps of the longest of these, where they are known; else a GPU is waited for.
        """
        lengths = self.lengths(rows)
        if longest is None:
            longest = int(lengths.max())
        steps = torch.arange(one_of_few(longest, self.most) if rows.is_cuda else longest, device=rows.device)[:, None]
        return self.values[self.offsets[rows] + torch.minimum(steps, lengths - 1)], lengths


@dataclass(frozen=True)
class RaggedData(DataSet):
    """A data set of sequences of different lengths."""

    @abstractmethod
    def kept(self, device: torch.device) -> Ragged:
        """The sequences of this part."""

    @abstractmethod
    def take(self, rows: Tensor, longest: int | None = None) -> Batch:
        """The sequences with these numbers; `longest` as in `Ragged.padded`."""

    def count(self) -> int:
        return len(self.kept(HOST))

    @property
    @abstractmethod
    def unasked(self) -> float:
        """What stands past the end of a target of every step."""

    def lengthened(self, batch: Batch, steps: int) -> Batch:
        """A batch with as many steps more as it takes, past the end of all of its sequences."""
        more = steps - len(batch.inputs)
        inputs = _extended(batch.inputs, more, 0)
        targets = _extended(batch.targets, more, self.unasked) if self.readout == "every" else batch.targets
        return batch._replace(inputs=inputs, targets=targets)

    def numbered(self, rows: Tensor, on_host: Tensor) -> Batch:
        return self.take(rows, int(self.kept(HOST).lengths(on_host).max()))


def one_of_few(steps: int, most: int) -> int:
    """The least of a few lengths that is not below `steps`: `most`, seven eighths of it, and so on.

    Below the fifth of them it is three quarters, so that batches of one sequence, of any length, need few as well.
    """
    for place in count():
        less = -(-7 * most // 8) if place < FINE else -(-3 * most // 4)
        if not steps <= less < most:
            break
        most = less
    return most


def _extended(values: Tensor, steps: int, fill: float) -> Tensor:
    return torch.cat([values, values.new_full((steps, *values.shape[1:]), fill)])


def inside(lengths: Tensor, steps: int) -> Tensor:
    """Which steps ``(T, B)`` lie before the end of their sequence."""
    return torch.arange(steps, device=lengths.device)[:, None] < lengths
