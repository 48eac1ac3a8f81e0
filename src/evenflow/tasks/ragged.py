"""Sequences of different lengths, kept one after the other on a device and padded when they are asked for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Ragged(NamedTuple):
    """Sequences one after the other.

    Shapes:
        values ``(S, ...)``; offsets ``(N + 1,)`` int64: sequence n is ``values[offsets[n]:offsets[n + 1]]``.
    """

    values: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, sequences: list[np.ndarray], device: torch.device) -> Ragged:
        """From arrays ``(T_n, ...)``."""
        offsets = np.cumsum([0, *(len(sequence) for sequence in sequences)], dtype=np.int64)
        values = torch.from_numpy(np.concatenate(sequences))
        return cls(values.to(device), torch.from_numpy(offsets).to(device))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def padded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """These sequences ``(T, B, ...)``, T as long as the longest, and their lengths ``(B,)``.

        On a GPU T is one of a few lengths, so that what is recorded for one batch serves others. What lies past an end
        is the sequence's last value: whoever asks masks it by the lengths.
        """
        first = self.offsets[rows]
        lengths = self.offsets[rows + 1] - first
        longest, of_all = torch.stack((lengths.max(), self.offsets.diff().max())).tolist()
        steps = torch.arange(one_of_few(longest, of_all) if rows.is_cuda else longest, device=rows.device)[:, None]
        return self.values[first + torch.minimum(steps, lengths - 1)], lengths


def one_of_few(steps: int, most: int) -> int:
    """The least of `most`, three quarters of it, three quarters of that and so on that is not below `steps`."""
    while steps <= (less := -(-3 * most // 4)) < most:
        most = less
    return most


def inside(lengths: Tensor, steps: int) -> Tensor:
    """Which steps ``(T, B)`` lie before the end of their sequence."""
    return torch.arange(steps, device=lengths.device)[:, None] < lengths
