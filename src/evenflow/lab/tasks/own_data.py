"""Base of the tasks on a user's own sequences: classification, regression, or prediction of the next step."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.lab.data import OwnSequences
from evenflow.lab.data.guarded import read_bytes
from evenflow.lab.data.own_sequences import LIMIT, check_choices
from evenflow.lab.data.table_layout import split_names
from evenflow.models.data_schema import DataSchema

from .classification import PADDING
from .data_set import SPLIT_SEED
from .own_division import SPLITS, Division
from .own_parts import Outlook, Parts, divide
from .ragged import Ragged, RaggedData, inside
from .task import Batch, check_options, option

SOLVED_ACCURACY, SOLVED_ERROR = 0.95, 0.05


@dataclass(frozen=True)
class OwnData(RaggedData):
    """Sequences from a file of your own. docs/data.md describes the two formats.

    The targets in the file decide what is learned, after the last step or at every step: classes (loss: cross entropy,
    metric: accuracy), numbers, or the inputs of the next step (loss: mean squared error, metric: its root). Inputs and
    regression targets are scaled to mean zero and deviation one over the training sequences; the metric and the loss
    are reported in the units of the file. With several targets, whose units may differ, the loss stays the mean of each
    target's squared error over its variance. A tenth of the sequences is for validation, chosen by `split`. One long
    series is cut into windows of `length` steps, and its last tenth is for validation. An accuracy of 95 %, or a
    squared error of a twentieth of the variance, counts as solved.

    A model of kind "next" forecasts further by reading its own predictions. With `horizon` it learns to predict several
    steps at once, at every step. Inputs in `known` are known ahead: it reads them at the steps that it predicts.

    Shapes:
        inputs ``(T, B, I)``; targets ``(B,)`` or ``(T, B)`` int64, or ``(B, O)`` or ``(T, B, O)``; lengths if they
        differ.

    Args:
        file: path of the file.
        kind: "classification", "regression" or "next". Default: what the targets look like.
        read: when the output is read, "last" or "every". Default: what the file looks like.
        length: cut each sequence into windows of this many steps. Default: 100 for one long series, else no cutting.
        stride: steps from one training window to the next; with less than `length` they overlap. Default: `length`.
        share: the share of the sequences that is for validation.
        split: "random", "stratified" (the same share of every class), "group" (all sequences of a group on one side)
            or "time" (the last ones). Default: by group if there are groups, by time for one long series, stratified
            for classes after the last step, else random.
        split_seed: seed of the random choice.
        validation: a file of its own for validation, in the same layout; then all of `file` is for training.
        horizon: for kind "next", how many of the next steps to predict at once. Default: one.
        known: for kind "next", names of the inputs that are known ahead, with commas; they are not predicted.
        data: the file or its folder, if it has moved.
    """

    file: str = option("", "the file; csv:FILE or npz:FILE in place of the task's name")
    kind: str | None = option(None, "classification, regression or next (step); by default what the targets look like")
    read: str | None = option(
        None, "last or every (step): when the answer is read; by default what the file looks like"
    )
    length: int | None = option(
        None, "cut sequences into windows of this many steps; 100 by default for one long series", whole=2
    )
    stride: int | None = option(None, "steps from one training window to the next; length by default", whole=1)
    share: float = option(0.1, "share of the sequences for validation", above=0, below=1)
    split: str | None = option(
        None,
        "random, stratified (by class), group or time (the last ones); by default what the file allows",
        choices=SPLITS,
    )
    split_seed: int = option(SPLIT_SEED, "seed of the choice of sequences for validation", whole=0)
    validation: str | None = option(None, "a file of its own for validation, in the same layout")
    horizon: int | None = option(
        None, "how many of the next steps to predict at once, for kind next; one by default", whole=1
    )
    known: str | None = option(None, "names of inputs that are known ahead, with commas, for kind next")
    data: str | None = dataclasses.field(
        default=None, kw_only=True, metadata={"help": "where the file is now, if it has moved; --data of `resume`"}
    )

    def __post_init__(self) -> None:
        check_choices(self.kind, self.read)
        check_options(self)
        for name in ("file", "validation", "known", "data"):
            if not isinstance(value := getattr(self, name), str) and (name == "file" or value is not None):
                what = "names of columns" if name == "known" else "a path"
                raise ValueError(f"{name} must be {what} as text, got {value!r}")

    @property
    def path(self) -> str:
        """The path that the file is read from."""
        if self.data is None:
            return self.file
        return os.path.join(self.data, os.path.basename(self.file)) if os.path.isdir(self.data) else self.data

    def sha256(self) -> str:
        """The SHA-256 of the file."""
        self._need_file()
        return _digest(*_written(self.path))

    @abstractmethod
    def _read(self) -> OwnSequences:
        """Read the file."""

    def _places(self) -> dict[str, str]:
        """The names of the columns of sequences and of times."""
        return {}

    @abstractmethod
    def _names(self, targets: int) -> Sequence[str]:
        """The names of the targets."""

    @property
    def note(self) -> str:  # type: ignore[override]
        clock = self._parts().own.clock if self.file else None
        return clock.note() if clock else ""

    def schema(self) -> DataSchema:
        return self._parts().schema

    @property
    def readout(self) -> str:  # type: ignore[override]
        return self._parts().own.readout

    @property
    def input_size(self) -> int:
        schema = self._parts().schema
        return schema.width + sum(size - 1 for _, _, size in schema.embedded)

    @property
    def column_embeddings(self) -> tuple[tuple[int, int, int], ...]:
        return self._parts().schema.embedded

    @property
    def output_size(self) -> int:
        return self._parts().schema.outputs

    @property
    def metric_name(self) -> str:
        return "accuracy" if self._classes() else "rmse"

    @property
    def higher_is_better(self) -> bool:
        return self._classes()

    @property
    def baseline(self) -> float:
        if not self._classes():
            return self.loss_unit
        counts = np.bincount(np.concatenate([np.atleast_1d(t) for t in self._parts().targets["training"]]))
        share = counts[counts > 0] / counts.sum()
        return float(-(share * np.log(share)).sum())

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self._classes():
            return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=PADDING)
        running = ~targets.isnan()
        return torch.where(running, outputs - targets.nan_to_num(), 0).square().sum() / running.sum()

    @property
    def loss_unit(self) -> float:
        predicted = self._parts().schema.predicted
        return predicted[0].deviation ** 2 if len(predicted) == 1 and not self._classes() else 1.0

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not self._classes():
            deviation = torch.from_numpy(self._parts().schema.output_scale[1]).to(outputs)
            return self.loss(outputs * deviation, targets * deviation)
        return (outputs.argmax(-1) == targets).sum() / (targets != PADDING).sum()

    def weight(self, batch: Batch) -> int | Tensor:
        if self.readout == "last":
            return len(batch.targets)
        if (self.horizon or 1) > 1:  # fewer steps follow the last ones
            return (~batch.targets.isnan()).sum()
        return batch.inputs.shape[0] * batch.inputs.shape[1] if batch.lengths is None else batch.lengths.sum()

    def summary(self, metric: float) -> float:
        return metric if self._classes() else math.sqrt(metric)

    @property
    def solved_limit(self) -> float | None:
        if self._classes():
            return SOLVED_ACCURACY
        variance = float((self._parts().schema.output_scale[1] ** 2).mean())
        return math.sqrt(SOLVED_ERROR * variance)

    def has_test(self) -> bool:
        return "test" in self._parts().inputs

    def count(self) -> int:
        return len(self._parts().inputs[self.part])

    @property
    def padding(self) -> float:
        return PADDING if self._classes() else math.nan

    def source(self) -> Hashable:
        """The paths, and when the files were last written: a new file of the same name is read again."""
        return _written(self.path), None if self.validation is None else _written(self.validation)

    def sequences(self) -> Sequence[np.ndarray]:
        return self._parts().inputs[self.part]

    def sequence_name(self, number: int) -> str:
        return self._parts().places[self.part][number]

    def take(self, rows: Tensor, longest: int | None = None) -> Batch:
        x, lengths = self.stored(rows.device).padded(rows, longest)
        targets = _targets(self, self.source(), rows.device)
        running = inside(lengths, len(x))
        x = x * running[..., None]
        if isinstance(targets, Tensor):
            y = targets[rows]
        else:
            y = targets.padded(rows, longest)[0]
            y = torch.where(running if y.dim() == 2 else running[..., None], y, self.padding)
        return Batch(x, y, None if _same_length(self._whole(), self.source()) else lengths)

    def _classes(self) -> bool:
        return self._parts().own.kind == "classification"

    def _need_file(self) -> None:
        if not self.file:
            raise ValueError(f"task {self.name} needs a file, as in `evenflow train {self.name}:FILE sgornn`")

    def _parts(self) -> Parts:
        self._need_file()
        return _divide(self._whole(), self.source())

    def _whole(self) -> OwnData:
        """One of the parts, by which all parts are cached together."""
        return self.in_part("training")


def _written(path: str) -> tuple[str, tuple[int, int]]:
    """A path, and when the file was last written."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return path, (0, 0)  # the reader reports what is wrong
    return path, (status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)
def _digest(path: str, written: tuple[int, int]) -> str:
    return hashlib.sha256(read_bytes(path, LIMIT)).hexdigest()


@lru_cache(maxsize=2)
def _divide(task: OwnData, source: Hashable) -> Parts:
    own = task._read()
    targets = 1 if own.kind == "classification" else own.outputs
    division = Division(task.share, task.split, task.split_seed)
    return divide(
        own,
        task.path,
        division,
        task.length,
        task.stride,
        task._names(targets),
        task._places(),
        task.validation,
        Outlook(task.horizon or 1, tuple(split_names(task.known))),
        named=bool(task.file),
    )


@lru_cache(maxsize=2)
def _same_length(task: OwnData, source: Hashable) -> bool:
    """Whether all sequences of all parts have the same length, so that none is padded."""
    return len({len(sequence) for part in task._parts().inputs.values() for sequence in part}) == 1


@lru_cache(maxsize=6)
def _targets(task: OwnData, source: Hashable, device: torch.device) -> Ragged | Tensor:
    """The targets of one part on a device."""
    targets = task._parts().targets[task.part]
    if task.readout == "every":
        return Ragged.of(targets, device)
    return torch.from_numpy(np.stack(targets)).to(device)
