"""Base of the data sets in which sequences have different lengths: stored end to end, padded in each batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .data_set import HOST, DataSet
from .task import Batch

FINE = 4  # batch lengths on a GPU in steps of an eighth; shorter ones come in steps of a quarter


class Ragged(NamedTuple):
    """Sequences stored end to end.

    Shapes:
        values ``(S, ...)``; offsets ``(N + 1,)`` int64: sequence n is ``values[offsets[n]:offsets[n + 1]]``.

    Attributes:
        most: the length of the longest sequence.
    """

    values: Tensor
    offsets: Tensor
    most: int

    @classmethod
    def of(cls, sequences: Sequence[np.ndarray], device: torch.device) -> Ragged:
        """Store arrays ``(T_n, ...)`` on a device."""
        lengths = np.array([len(sequence) for sequence in sequences])
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        values = torch.from_numpy(np.concatenate(sequences))
        return cls(values.to(device), torch.from_numpy(offsets).to(device), int(lengths.max(initial=0)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, rows: Tensor) -> Tensor:
        """The lengths of these sequences ``(B,)``."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def padded(self, rows: Tensor, longest: int | None = None, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """These sequences as one tensor ``(T, B, ...)``, and their lengths ``(B,)``.

        T is the length of the longest of them; on a GPU it is rounded up to one of a few lengths, so that a captured
        graph serves many batches. Past its end a sequence repeats its last value, which the caller masks.

        Args:
            rows: the numbers of the sequences.
            longest: the length of the longest of these sequences, if known; otherwise the call waits for a GPU.
            starts: ``(B,)``: the sequences from these steps on, and of each at most `longest` steps.
        """
        lengths, offsets = self.lengths(rows), self.offsets[rows]
        if starts is not None:
            lengths, offsets = (lengths - starts).clamp(max=longest), offsets + starts
        if longest is None:
            longest = int(lengths.max())
        steps = torch.arange(one_of_few(longest, self.most) if rows.is_cuda else longest, device=rows.device)[:, None]
        return self.values[offsets + torch.minimum(steps, lengths - 1)], lengths


@dataclass(frozen=True)
class RaggedData(DataSet):
    """A data set of sequences of different lengths. A subclass implements `sequences`.

    A batch holds all but the last step of each sequence as inputs, and all but the first as targets.
    """

    @abstractmethod
    def sequences(self) -> Sequence[np.ndarray]:
        """The sequences ``(T_n, ...)`` of this part."""

    @property
    @abstractmethod
    def padding(self) -> float:
        """The target that the loss ignores, which stands past the end of a sequence."""

    def stored(self, device: torch.device) -> Ragged:
        """`sequences` on a device."""
        return _stored(self, self.source(), device)

    def count(self) -> int:
        return len(self.stored(HOST))

    def take(self, rows: Tensor, longest: int | None = None) -> Batch:
        """The sequences with these numbers; `longest` as in `Ragged.padded`."""
        return self.shifted(*self.stored(rows.device).padded(rows, longest))

    def shifted(self, values: Tensor, lengths: Tensor) -> Batch:
        """A batch of padded sequences: their values as inputs, and those of the next step as targets."""
        values = values.float() if values.dim() == 3 else values.long()  # vectors, or symbols
        running = inside(lengths - 1, len(values) - 1)
        running = running[..., None] if values.dim() == 3 else running
        return Batch(values[:-1] * running, torch.where(running, values[1:], self.padding), lengths - 1)

    def take_without_waiting(self, rows: Tensor, host_rows: Tensor) -> Batch:
        return self.take(rows, int(self.stored(HOST).lengths(host_rows).max()))

    def lengthened(self, batch: Batch, steps: int) -> Batch:
        """The batch padded to `steps` steps."""
        more = steps - len(batch.inputs)
        inputs = _extended(batch.inputs, more, 0)
        targets = _extended(batch.targets, more, self.padding) if self.readout == "every" else batch.targets
        return batch._replace(inputs=inputs, targets=targets)


@lru_cache(maxsize=6)  # three parts, each on the device and, for their lengths, on the CPU
def _stored(task: RaggedData, source: Hashable, device: torch.device) -> Ragged:
    return Ragged.of(task.sequences(), device)


def one_of_few(steps: int, most: int) -> int:
    """Round a length up to one of a few: `most`, seven eighths of it, and so on.

    From the fifth on, each is three quarters of the one before, so that short batches need few lengths as well.
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
    """Which steps ``(T, B)`` come before the end of their sequence."""
    return torch.arange(steps, device=lengths.device)[:, None] < lengths
