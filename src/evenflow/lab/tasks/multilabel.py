"""Multi-label classification of rows of features, for networks without time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.lab.data import Multilabel, read_multilabel
from evenflow.lab.data.multilabel_files import SETS

from .data_set import FileData, require, split
from .labelled import Labelled
from .task import Batch, option

HELD_OUT = 10  # one training row in ten
# Precision at one, the linear baselines of the extreme classification repository: 62.5 % (Bibtex), 84 % (Mediamill).
SOLVED_PRECISION = {"bibtex": 0.60, "mediamill": 0.83}


@dataclass(frozen=True)
class MultilabelRows(FileData, Labelled):
    """Predict the labels of a row of features, which is a sequence of one step.

    A fixed random tenth of the training rows is for validation. Loss: binary cross entropy, a mean over labels; without
    memory it is the entropy of the labels. Metric: precision at one, the share of rows that have the label with the
    largest output; 60 % (Bibtex) and 83 % (Mediamill) count as solved.

    Shapes:
        inputs ``(1, B, F)``; targets ``(B, L)`` of zeros and ones.

    Args:
        set: "bibtex" (1,836 features, 159 labels) or "mediamill" (120 features, 101 labels).
        data: the data folder.

        >>> task = MultilabelRows()
        >>> task.input_size, task.output_size, task.test().count()
        (1836, 159, 2515)

    Reference: Katakis et al. 2008; Snoek et al. 2006; Zhang, Lei and Dhillon 2018, appendix C.
    """

    set: str = option("bibtex", "bibtex or mediamill", choices=SETS)

    name = "multilabel"
    problem = "multilabel"
    metric_name = "precision"

    @property
    def input_size(self) -> int:
        return _read(self.folder, self.set).x_train.shape[1]

    @property
    def output_size(self) -> int:
        return _read(self.folder, self.set).y_train.shape[1]

    @property
    def baseline(self) -> float:
        share = self.in_part("training").tensors()[1].double().mean(0)
        return float((torch.special.entr(share) + torch.special.entr(1 - share)).mean())

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs))

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return targets.gather(-1, outputs.argmax(-1, keepdim=True)).float().mean()

    @property
    def solved_limit(self) -> float:
        return SOLVED_PRECISION[self.set]

    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        read = _read(self.folder, self.set)
        if self.part == "test":
            return read.x_test[:, None], read.y_test
        rows = split(len(read.y_train), len(read.y_train) // HELD_OUT)[self.part == "validation"]
        return read.x_train[rows][:, None], read.y_train[rows]

    def take(self, rows: Tensor) -> Batch:
        batch = super().take(rows)
        return batch._replace(targets=batch.targets.float())


@lru_cache(maxsize=1)
def _read(folder: Path, name: str) -> Multilabel:
    require(name, folder)
    return read_multilabel(folder, name)
