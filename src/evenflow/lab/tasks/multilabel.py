"""Rows of features with any number of labels each, for networks without time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.checks import one_of
from evenflow.lab.data.multilabel_files import SETS, Multilabel, read_multilabel

from .data_set import FileData, need, split
from .task import Batch, option

HELD_OUT = 10  # one training row in ten
# Precision at one, the linear baselines of the extreme classification repository: 62.5 % (Bibtex), 84 % (Mediamill).
SOLVED_PRECISION = {"bibtex": 0.60, "mediamill": 0.83}


@dataclass(frozen=True)
class MultilabelRows(FileData):
    """One row of features, a sequence of a single step; which labels has it?

    A fixed random tenth of the training rows is for validation. Loss: binary cross entropy, a mean over labels; without
    memory it is that of the shares of the labels. Metric: the precision at one, the share of rows whose likeliest label
    is one of theirs; 60 % (Bibtex) and 83 % (Mediamill) count as solved.

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

    set: str = option("bibtex", "bibtex or mediamill")

    name: ClassVar[str] = "multilabel"
    readout: ClassVar[str] = "last"

    def __post_init__(self) -> None:
        one_of("set", self.set, SETS)

    @property
    def input_size(self) -> int:
        return _read(self.folder, self.set).x_train.shape[1]

    @property
    def output_size(self) -> int:
        return _read(self.folder, self.set).y_train.shape[1]

    @property
    def metric_name(self) -> str:
        return "precision"

    @property
    def higher_is_better(self) -> bool:
        return True

    @property
    def baseline(self) -> float:
        share = _keep(self.folder, self.set, "training", torch.device("cpu"))[1].double().mean(0)
        return float((torch.special.entr(share) + torch.special.entr(1 - share)).mean())

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs))

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return targets.gather(-1, outputs.argmax(-1, keepdim=True)).float().mean()

    def solved(self, metric: float) -> bool:
        return metric >= SOLVED_PRECISION[self.set]

    def count(self) -> int:
        return len(_keep(self.folder, self.set, self.part, torch.device("cpu"))[1])

    def take(self, rows: Tensor) -> Batch:
        features, labels = _keep(self.folder, self.set, self.part, rows.device)
        return Batch(features[rows][None], labels[rows].float())


@lru_cache(maxsize=6)
def _keep(folder: Path, name: str, part: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Features and labels of one part, the labels as bytes."""
    read = _read(folder, name)
    features, labels = read.x_test, read.y_test
    if part != "test":
        rows = split(len(read.y_train), len(read.y_train) // HELD_OUT)[part == "validation"]
        features, labels = read.x_train[rows], read.y_train[rows]
    return torch.from_numpy(features).to(device), torch.from_numpy(labels).to(device)


@lru_cache(maxsize=1)
def _read(folder: Path, name: str) -> Multilabel:
    need(name, folder)
    return read_multilabel(folder, name)
