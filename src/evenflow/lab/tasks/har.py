"""Human activity from the motion of a smartphone: two or six classes, after 128 steps of nine signals."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from evenflow.lab.data.har_files import ACTIVITIES, SIGNALS, Windows, read_har

from .data_set import FileData, need
from .labelled import Labelled
from .task import option

# Kusupati et al. 2018: sitting, laying and walking upstairs are one class, the other three the other.
TWO = np.array([name in ("walking upstairs", "sitting", "laying") for name in ACTIVITIES], dtype=np.int64)
HELD_OUT = 10  # one window in ten, the last ones
SOLVED_ACCURACY = {2: 0.94, 6: 0.90}  # two: SGORNN's 94.07 %


@dataclass(frozen=True)
class Har(FileData, Labelled):
    """What is someone doing, whose phone moved like this?

    Windows of 128 steps (2.56 s) and nine signals, each signal scaled to mean zero and deviation one over the training
    windows. The training windows are sorted by person and overlap by half, so that the last tenth of them, those of the
    last people, is for validation: random ones would have their halves among the training windows. Metric: the share of
    right answers; 94 % of two classes and 90 % of six count as solved.

    Shapes:
        inputs ``(128, B, 9)``; targets ``(B,)`` int64.

    Args:
        classes: 6, the activities; 2, {walking upstairs, sitting, laying} against the other three (HAR-2).
        data: the data folder.

        >>> task = HarRebuilt(classes=2)
        >>> task.count() + task.held_out().count(), task.test().count()
        (7352, 2947)

    Reference: Anguita et al. 2013; HAR-2: Kusupati et al. 2018.
    """

    classes: int = option(2, "2 (HAR-2) or 6 (the activities)")

    name: ClassVar[str] = "har"
    version: ClassVar[str] = "original"

    def __post_init__(self) -> None:
        if self.classes not in SOLVED_ACCURACY:
            raise ValueError(f"classes must be 2 or 6, got {self.classes!r}")

    @property
    def input_size(self) -> int:
        return len(SIGNALS)

    @property
    def output_size(self) -> int:
        return self.classes

    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        read = _read(self.folder, self.version)
        kept = len(read.y_train) - len(read.y_train) // HELD_OUT
        training = read.x_train[:kept]
        mean, deviation = (moment.astype(np.float32) for moment in _moments(training))
        inputs, labels = {
            "training": (training, read.y_train[:kept]),
            "validation": (read.x_train[kept:], read.y_train[kept:]),
            "test": (read.x_test, read.y_test),
        }[self.part]
        return (inputs - mean) / deviation, TWO[labels] if self.classes == 2 else labels

    def solved(self, metric: float) -> bool:
        return metric >= SOLVED_ACCURACY[self.classes]


@dataclass(frozen=True)
class HarRebuilt(Har):
    """`Har` with all 7,352 and 2,947 windows cut again from the raw recordings that the published ones came from.

    About one window in a hundred may be half a window off.
    """

    name: ClassVar[str] = "har-rebuilt"
    version: ClassVar[str] = "rebuilt"
    note: ClassVar[str] = "rebuilt from raw recordings"


@dataclass(frozen=True)
class HarSubset(Har):
    """`Har` with 2,400 and 950 of the published windows."""

    name: ClassVar[str] = "har-subset"
    version: ClassVar[str] = "subset"
    note: ClassVar[str] = "a third of the published windows"


def _moments(windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    exact = windows.astype(np.float64)
    return exact.mean((0, 1)), exact.std((0, 1))


@lru_cache(maxsize=1)
def _read(folder: Path, version: str) -> Windows:
    need(f"har-{version}".removesuffix("-original"), folder)
    return read_har(folder, version)
