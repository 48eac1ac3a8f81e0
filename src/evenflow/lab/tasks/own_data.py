"""A user's own sequences, from a CSV or an npz file: classes, numbers, or the next step."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.checks import whole_number
from evenflow.lab.data import OwnSequences, read_csv, read_npz
from evenflow.lab.data.guarded import read_bytes
from evenflow.lab.data.own_sequences import LIMIT, check_choices

from .next_symbol import PADDING
from .own_parts import Parts, divide
from .ragged import Ragged, RaggedData, inside
from .task import Batch, option

SOLVED_ACCURACY, SOLVED_ERROR = 0.95, 0.05


@dataclass(frozen=True)
class OwnData(RaggedData):
    """Sequences of numbers from a file of one's own.

    What is learned follows from the file: classes (cross entropy, judged by the share of right answers), numbers (mean
    squared error), or the inputs of the next step (likewise); after the last step or at every step. docs/data.md has
    the two formats. Inputs, and numbers to learn, are scaled to mean zero and deviation one over the training
    sequences, so that an error of 1 is that of the mean. A fixed random tenth of the sequences is for validation; one
    long series is cut into pieces of `length` steps, and the last tenth of those is for validation. An accuracy of 95 %
    and an error of 0.05 count as solved.

    Shapes:
        inputs ``(T, B, I)``; targets ``(B,)`` or ``(T, B)`` int64, or ``(B, O)`` or ``(T, B, O)``; lengths where they
        differ.

    Args:
        file: where the sequences are.
        kind: "classification", "regression" or "next", where the file's targets look like something else.
        read: when the answer is read, "last" or "every", where the file looks like the other.
        length: steps of a piece of one long series.
        data: where the file or its folder is now, if the file has moved.
    """

    file: str = option("", "the file; csv:FILE or npz:FILE in place of the task's name")
    kind: str | None = option(None, "classification, regression or next (step); by default what the targets look like")
    read: str | None = option(
        None, "last or every (step): when the answer is read; by default what the file looks like"
    )
    length: int = option(100, "steps of a piece, where the file is one long series")
    data: str | None = dataclasses.field(
        default=None, kw_only=True, metadata={"help": "where the file is now, if it has moved; --data of `resume`"}
    )

    def __post_init__(self) -> None:
        check_choices(self.kind, self.read)
        whole_number("length", self.length, 2)
        for name in ("file", "data"):
            if not isinstance(value := getattr(self, name), str) and (name == "file" or value is not None):
                raise ValueError(f"{name} must be a path as text, got {value!r}")

    @property
    def path(self) -> str:
        """Where the file is read from."""
        if self.data is None:
            return self.file
        return os.path.join(self.data, os.path.basename(self.file)) if os.path.isdir(self.data) else self.data

    def sha256(self) -> str:
        """Of the file's bytes."""
        self._need_file()
        return _digest(self.path, _stamp(self.path))

    @abstractmethod
    def _read(self) -> OwnSequences:
        """The file's content."""

    @property
    def readout(self) -> str:  # type: ignore[override]
        return self._parts().own.readout

    @property
    def input_size(self) -> int:
        return len(self._parts().own.names)

    @property
    def output_size(self) -> int:
        return self._parts().own.outputs

    @property
    def metric_name(self) -> str:
        return "accuracy" if self._classes() else "mse"

    @property
    def higher_is_better(self) -> bool:
        return self._classes()

    @property
    def baseline(self) -> float:
        if not self._classes():
            return 1.0
        counts = np.bincount(np.concatenate([np.atleast_1d(t) for t in self._parts().targets["training"]]))
        share = counts[counts > 0] / counts.sum()
        return float(-(share * np.log(share)).sum())

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self._classes():
            return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=PADDING)
        asked = ~targets.isnan()
        return torch.where(asked, outputs - targets.nan_to_num(), 0).square().sum() / asked.sum()

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not self._classes():
            return self.loss(outputs, targets)
        return (outputs.argmax(-1) == targets).sum() / (targets != PADDING).sum()

    def weight(self, batch: Batch) -> int | Tensor:
        if self.readout == "last":
            return len(batch.targets)
        return batch.inputs.shape[0] * batch.inputs.shape[1] if batch.lengths is None else batch.lengths.sum()

    def solved(self, metric: float) -> bool:
        return metric >= SOLVED_ACCURACY if self._classes() else metric <= SOLVED_ERROR

    def has_test(self) -> bool:
        return "test" in self._parts().inputs

    def count(self) -> int:
        return len(self._parts().inputs[self.part])

    @property
    def unasked(self) -> float:
        return PADDING if self._classes() else math.nan

    def kept(self, device: torch.device) -> Ragged:
        return _keep(self, _stamp(self.path), device)[0]

    def take(self, rows: Tensor, longest: int | None = None) -> Batch:
        inputs, targets = _keep(self, _stamp(self.path), rows.device)
        x, lengths = inputs.padded(rows, longest)
        running = inside(lengths, len(x))
        x = x * running[..., None]
        if isinstance(targets, Tensor):
            y = targets[rows]
        else:
            y = targets.padded(rows, longest)[0]
            y = torch.where(running if y.dim() == 2 else running[..., None], y, self.unasked)
        return Batch(x, y, None if _even(*self._file()) else lengths)

    def _classes(self) -> bool:
        return self._parts().own.kind == "classification"

    def _need_file(self) -> None:
        if not self.file:
            raise ValueError(f"task {self.name} needs a file, as in `evenflow train {self.name}:FILE sgornn`")

    def _parts(self) -> Parts:
        self._need_file()
        return _divide(*self._file())

    def _file(self) -> tuple[OwnData, tuple[int, int]]:
        """What tells a file from another: it is read once for all parts."""
        return cast(OwnData, self.in_part("training")), _stamp(self.path)


@dataclass(frozen=True)
class CsvData(OwnData):
    """`OwnData` from a CSV file, one row a step.

    Args:
        sequence, target: names of the columns that say which sequence a row belongs to, and what is to be learned
            (several with commas between them, for a regression on several numbers).
        others: see `OwnData`.

        >>> make("csv:motion.csv", target="activity").input_size
        3
    """

    sequence: str = option("sequence", "name of the column that tells the sequences apart")
    target: str = option("target", "name of the column to learn; several with commas between them")

    name: ClassVar[str] = "csv"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sequence", "target"):
            if not isinstance(value := getattr(self, name), str):
                raise ValueError(f"{name} must be the name of a column, as text, got {value!r}")

    def _read(self) -> OwnSequences:
        return read_csv(self.path, self.sequence, self.target, self.kind, self.read)


@dataclass(frozen=True)
class NpzData(OwnData):
    """`OwnData` from the arrays x, y and lengths of an npz file, and x_test and y_test for a test.

    >>> make("npz:motion.npz").input_size
    3
    """

    name: ClassVar[str] = "npz"

    def _read(self) -> OwnSequences:
        return read_npz(self.path, self.kind, self.read)


def _stamp(file: str) -> tuple[int, int]:
    """When the file was last written, so that a new one of the same name is read anew."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return 0, 0  # the reader says what is wrong
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=2)
def _digest(path: str, stamp: tuple[int, int]) -> str:
    return hashlib.sha256(read_bytes(path, LIMIT)).hexdigest()


@lru_cache(maxsize=2)
def _divide(task: OwnData, stamp: tuple[int, int]) -> Parts:
    return divide(task._read(), task.path, task.length)


@lru_cache(maxsize=2)
def _even(task: OwnData, stamp: tuple[int, int]) -> bool:
    """Whether all sequences of all parts have one length, so that none is padded."""
    return len({len(sequence) for part in task._parts().inputs.values() for sequence in part}) == 1


@lru_cache(maxsize=6)
def _keep(task: OwnData, stamp: tuple[int, int], device: torch.device) -> tuple[Ragged, Ragged | Tensor]:
    """Inputs and targets of one part on the device."""
    parts = task._parts()
    inputs, targets = parts.inputs[task.part], parts.targets[task.part]
    if parts.own.readout == "every":
        return Ragged.of(inputs, device), Ragged.of(targets, device)
    return Ragged.of(inputs, device), torch.from_numpy(np.stack(targets)).to(device)
