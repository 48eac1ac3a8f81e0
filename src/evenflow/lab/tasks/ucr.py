"""Classification of the time series of the UCR archive, several numbers per step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from evenflow.lab.data import UcrSeries, read_ucr

from .data_set import SPLIT_SEED, FileData, require, stratified_split
from .labelled import Labelled
from .task import option

HELD_OUT = 5  # one training series in five is for validation, as in the document


@dataclass(frozen=True)
class Ucr(FileData, Labelled):
    """Classify a series of L numbers after its last step; L / width steps of `width` numbers.

    A random fifth of the training series of each class is for validation; the archive's test part is for the test.
    Metric: accuracy; 95 % counts as solved.

    Shapes:
        inputs ``(L / width, B, width)``; targets ``(B,)`` int64.

    Args:
        set: the name of the set in the archive, such as "ECG5000".
        width: numbers per step, a divisor of L. Default: the largest divisor up to √L, which gives the depths of the
            document's Table 4 except for 50words (10 in the table, 15 by this rule).
        split_seed: seed of the choice of validation series. Default: 1. With training sets this small another choice
            changes the result: runs that differ in their seed should differ in this too.
        data: the data folder.

        >>> task = Ucr(set="ECG5000")
        >>> task.batch(4, torch.Generator().manual_seed(0)).inputs.shape
        torch.Size([140, 4, 1])

    Reference: Dau et al. 2018; Zhang, Lei and Dhillon 2018, appendix C.
    """

    set: str = option("ECG5000", "name of the set in the archive")
    width: int | None = option(
        None, "numbers a step, a divisor of the length; by default the largest up to its root", whole=1
    )
    split_seed: int = option(SPLIT_SEED, "seed of the choice of series for validation", whole=0)

    name = "ucr"
    solved_limit = 0.95

    def __post_init__(self) -> None:
        if not isinstance(self.set, str) or not self.set:
            raise ValueError(f"set must be the name of a UCR set, such as 'ECG5000', got {self.set!r}")
        super().__post_init__()

    @property
    def input_size(self) -> int:
        length = _read(self.folder, self.set).x_train.shape[1]
        if self.width is None:
            return max(divisor for divisor in range(1, math.isqrt(length) + 1) if length % divisor == 0)
        if length % self.width:
            raise ValueError(f"width must divide the {length} numbers of a series of {self.set}, got {self.width}")
        return self.width

    @property
    def output_size(self) -> int:
        return len(_read(self.folder, self.set).labels)

    @property
    def labels(self) -> tuple[int, ...] | tuple[str, ...]:
        return _read(self.folder, self.set).labels

    def has_test(self) -> bool:
        return _read(self.folder, self.set).x_test is not None

    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        read = _read(self.folder, self.set)
        if self.part == "test":
            if read.x_test is None or read.y_test is None:
                raise ValueError(f"{self.set} has no test part in the data folder {str(self.folder)!r}")
            series, labels = read.x_test, read.y_test
        else:
            rows = stratified_split(read.y_train, HELD_OUT, self.split_seed)[self.part == "validation"]
            series, labels = read.x_train[rows], read.y_train[rows]
        return series.reshape(len(series), -1, self.input_size), labels


@lru_cache(maxsize=4)
def _read(folder: Path, name: str) -> UcrSeries:
    require(f"ucr/{name}", folder)
    return read_ucr(folder, name)
