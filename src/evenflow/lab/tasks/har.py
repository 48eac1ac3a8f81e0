"""Human activity recognition from a smartphone's motion: two or six classes, 128 steps of nine signals."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from evenflow.lab.data import Windows, read_har
from evenflow.lab.data.har_files import ACTIVITIES, SIGNALS
from evenflow.models.data_schema import DataColumn, DataSchema

from .data_set import FileData, require
from .labelled import Labelled
from .task import Batch, option

# HAR-2 of Kusupati et al. 2018: these three activities are class 1, the others class 0.
HAR_2 = np.array([name in ("walking upstairs", "sitting", "laying") for name in ACTIVITIES], dtype=np.int64)
HELD_OUT = 10  # the last tenth of the training windows is for validation
VALIDATIONS = ("tenth", "test")
SOLVED_ACCURACY = {2: 0.94, 6: 0.90}  # two: SGORNN's 94.07 %


@dataclass(frozen=True)
class Har(FileData, Labelled):
    """Classify what a person does from the motion of their phone.

    A window has 128 steps (2.56 s) of nine signals. Each signal is scaled to mean zero and deviation one over the
    training windows; a saved model does this itself and reads accelerations in g and turning rates in rad/s. The
    training windows are sorted by person and overlap by half. The last tenth of them, those of the last people, is for
    validation: random windows would share their halves with training windows. Metric: accuracy; 94 % of two classes and
    90 % of six count as solved.

    Shapes:
        inputs ``(128, B, 9)``; targets ``(B,)`` int64; with `one_output` ``(B, 1)`` of zeros and ones.

    Args:
        classes: 6, the activities; 2, {walking upstairs, sitting, laying} against the other three (HAR-2).
        one_output: with two classes, one output whose sigmoid is the probability of the second class, as in the sgornn
            document. Loss: binary cross entropy.
        validation: "tenth", the last tenth of the training windows; "test", the test windows, as in the sgornn
            document: then all training windows are trained on, and there is no test part left. What a validation
            selects, such as the best weights, has then seen the test windows.
        data: the data folder.

        >>> task = HarRebuilt(classes=2)
        >>> task.count() + task.held_out().count(), task.test().count()
        (7352, 2947)

    Reference: Anguita et al. 2013; HAR-2: Kusupati et al. 2018.
    """

    classes: int = option(2, "2 (HAR-2) or 6 (the activities)")
    one_output: bool = option(False, "one output for two classes, whose sigmoid is the probability of the second")
    validation: str = option(
        "tenth",
        "tenth (the last of the training windows) or test (the test windows: no test is left)",
        choices=VALIDATIONS,
    )

    name = "har"
    version = "original"
    input_size = len(SIGNALS)

    def __post_init__(self) -> None:
        if self.classes not in SOLVED_ACCURACY:
            raise ValueError(f"classes must be 2 or 6, got {self.classes!r}")
        super().__post_init__()
        if self.one_output and self.classes != 2:
            raise ValueError(f"one_output goes with 2 classes, got {self.classes}")

    @property
    def problem(self) -> str:  # type: ignore[override]
        return "multilabel" if self.one_output else "classification"

    @property
    def output_size(self) -> int:
        return 1 if self.one_output else self.classes

    def schema(self) -> DataSchema:
        columns = zip(SIGNALS, *(values.tolist() for values in self._scale()), strict=True)
        signals = tuple(DataColumn(name, mean=mean, deviation=deviation) for name, mean, deviation in columns)
        plain = dataclasses.replace(super().schema(), inputs=signals)
        return dataclasses.replace(plain, targets=(DataColumn(self.labels[1]),)) if self.one_output else plain

    def has_test(self) -> bool:
        return self.validation != "test"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.one_output:
            return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs))
        return super().loss(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.one_output:
            return ((outputs > 0) == (targets > 0)).float().mean()
        return super().metric(outputs, targets)

    def take(self, rows: Tensor) -> Batch:
        batch = super().take(rows)
        return batch._replace(targets=batch.targets[:, None].float()) if self.one_output else batch

    @property
    def labels(self) -> tuple[str, ...]:
        if self.classes == len(ACTIVITIES):
            return ACTIVITIES
        groups = ([name for name, group in zip(ACTIVITIES, HAR_2, strict=True) if group == one] for one in (0, 1))
        return tuple(", ".join(names) for names in groups)

    def _scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each signal over the training windows."""
        read = _read(self.folder, self.version)
        training = read.x_train[: self._first(read)].astype(np.float64)
        return training.mean((0, 1)).astype(np.float32), training.std((0, 1)).astype(np.float32)

    def _first(self, read: Windows) -> int:
        """The training window with which the validation part begins; their number if it is the test part."""
        return len(read.y_train) - (len(read.y_train) // HELD_OUT if self.validation == "tenth" else 0)

    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        read, (mean, deviation) = _read(self.folder, self.version), self._scale()
        first, of_test = self._first(read), (read.x_test, read.y_test)
        inputs, labels = {
            "training": (read.x_train[:first], read.y_train[:first]),
            "validation": (read.x_train[first:], read.y_train[first:]) if first < len(read.y_train) else of_test,
            "test": of_test,
        }[self.part]
        return (inputs - mean) / deviation, HAR_2[labels] if self.classes == 2 else labels

    @property
    def solved_limit(self) -> float:
        return SOLVED_ACCURACY[self.classes]


@dataclass(frozen=True)
class HarRebuilt(Har):
    """`Har` with all 7,352 + 2,947 windows, cut anew from the raw recordings of the published windows.

    About one window in a hundred may be off by half a window.

    >>> task = HarRebuilt()
    >>> task.batch(50, torch.Generator().manual_seed(0)).inputs.shape
    torch.Size([128, 50, 9])
    """

    name = "har-rebuilt"
    version = "rebuilt"
    note = "rebuilt from raw recordings"


@dataclass(frozen=True)
class HarSubset(Har):
    """`Har` with 2,400 + 950 of the published windows.

    >>> task = HarSubset()
    >>> task.batch(50, torch.Generator().manual_seed(0)).inputs.shape
    torch.Size([128, 50, 9])
    """

    name = "har-subset"
    version = "subset"
    note = "a third of the published windows"


@lru_cache(maxsize=1)
def _read(folder: Path, version: str) -> Windows:
    require(f"har-{version}".removesuffix("-original"), folder)
    return read_har(folder, version)
