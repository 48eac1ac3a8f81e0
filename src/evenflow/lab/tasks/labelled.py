"""What data sets share in which every sequence has the same length and one label."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from .classification import Classification
from .data_set import DataSet
from .task import Batch


@dataclass(frozen=True)
class Labelled(DataSet, Classification):
    """N sequences of T steps, each with one of O classes. A subclass reads them (`sequences`).

    They are read once and kept on the device they are asked for on, as small as the file has them. Loss: cross entropy;
    without memory it is that of the shares of the classes among the training sequences. Metric: the share of right
    answers.

    Shapes:
        inputs ``(T, B, I)``; targets ``(B,)`` int64 below O.
    """

    scale: ClassVar[float] = 1.0  # what stored whole numbers are multiplied by

    @abstractmethod
    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        """This part's inputs ``(N, T, I)`` and labels ``(N,)``."""

    def count(self) -> int:
        return len(self._kept(torch.device("cpu"))[1])

    def take(self, rows: Tensor) -> Batch:
        inputs, labels = self._kept(rows.device)
        chosen = inputs[rows].transpose(0, 1).contiguous()
        return Batch(chosen if inputs.is_floating_point() else chosen * self.scale, labels[rows])

    @property
    def baseline(self) -> float:
        labels = self.in_part("training")._kept(torch.device("cpu"))[1]  # type: ignore[attr-defined]
        share = torch.bincount(labels).double() / len(labels)
        return float(torch.special.entr(share).sum())

    def _kept(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return _keep(self, getattr(self, "folder", None), device)


# A training, a validation and a test part, on the device and, to count them, on the CPU.
@lru_cache(maxsize=6)
def _keep(task: Labelled, folder: Path | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """The tensors of one part; `folder` is there because the environment may name another one tomorrow."""
    inputs, labels = task.sequences()
    kept = torch.from_numpy(np.ascontiguousarray(inputs)), torch.from_numpy(labels.astype(np.int64))
    return kept[0].to(device), kept[1].to(device)
