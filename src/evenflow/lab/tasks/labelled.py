"""Base of the data sets in which all sequences have the same length and a label each."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from evenflow.models.data_schema import DataColumn, DataSchema

from .classification import Classification
from .data_set import HOST, DataSet
from .task import Batch


@dataclass(frozen=True)
class Labelled(DataSet, Classification):
    """N sequences of T steps, each with one of O classes. A subclass implements `sequences`.

    The sequences stay on the device that they are used on, in the data type of the file. Loss: cross entropy; without
    memory it is the entropy of the classes of the training sequences. Metric: accuracy.

    Shapes:
        inputs ``(T, B, I)``; targets ``(B,)`` int64 below O.
    """

    scale: ClassVar[float] = 1.0  # factor for inputs that are stored as whole numbers

    @abstractmethod
    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        """The inputs ``(N, T, I)`` and the labels ``(N,)`` of this part."""

    @property
    def labels(self) -> tuple[int, ...] | tuple[str, ...]:
        """The names of the classes, in the order of the outputs."""
        return tuple(range(self.output_size))

    def schema(self) -> DataSchema:
        plain = super().schema()
        if plain.kind != "classification":
            return plain
        return dataclasses.replace(plain, targets=(DataColumn("target", "category", categories=self.labels),))

    def tensors(self, device: torch.device = HOST) -> tuple[Tensor, Tensor]:
        """`sequences` as tensors on a device, labels as int64."""
        return _tensors(self, self.source(), device)

    def count(self) -> int:
        return len(self.tensors()[1])

    def take(self, rows: Tensor) -> Batch:
        inputs, labels = self.tensors(rows.device)
        chosen = inputs[rows].transpose(0, 1).contiguous()
        return Batch(chosen if inputs.is_floating_point() else chosen * self.scale, labels[rows])

    @property
    def baseline(self) -> float:
        labels = self.in_part("training").tensors()[1]
        share = torch.bincount(labels).double() / len(labels)
        return float(torch.special.entr(share).sum())


@lru_cache(maxsize=6)  # three parts, each on the device and, to count its sequences, on the CPU
def _tensors(task: Labelled, source: Hashable, device: torch.device) -> tuple[Tensor, Tensor]:
    inputs, labels = task.sequences()
    inputs, labels = np.ascontiguousarray(inputs), labels.astype(np.int64)
    return torch.from_numpy(inputs).to(device), torch.from_numpy(labels).to(device)
