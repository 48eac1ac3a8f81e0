"""Sequences in memory as a task, with a weight for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.lab.tasks import Batch
from evenflow.lab.tasks.data_set import HOST, DataSet
from evenflow.lab.tasks.ragged import Ragged, inside
from evenflow.models import DataSchema

SOLVED = 0.95

Part = tuple[Sequence[np.ndarray], Sequence[np.ndarray]]  # inputs (T_n, C); targets (K) or (T_n, K)


class WeightedSequences(DataSet):
    """Sequences that the caller has, scaled as a schema says. Only `fit` of the estimators makes this task.

    Classification: cross entropy, and accuracy. Regression and the next step: squared error of scaled numbers, and R²,
    the share of their variance that is explained. Losses and metrics are weighted means.

    Shapes:
        inputs ``(T, B, C)``; targets ``(B, K + 1)`` or, at every step, ``(T, B, K + 1)``: K numbers, or one number of a
        class, and the weight, which is 0 past the end of a sequence; lengths if they differ.

    Args:
        schema: what the inputs and targets are.
        parts: inputs and targets in the user's units, in "training" and "validation".
        weights: one for each sequence of each part.
    """

    name = "arrays"

    def __init__(self, schema: DataSchema, parts: Mapping[str, Part], weights: Mapping[str, np.ndarray]) -> None:
        self._schema = schema
        self._stored: dict[tuple[str, torch.device], tuple[Ragged, Ragged | Tensor]] = {}
        for part, (inputs, targets) in parts.items():
            scaled = [_scaled(x, schema.input_scale) for x in inputs]
            rows = [_weighted(_scaled(y, schema.output_scale), w) for y, w in zip(targets, weights[part], strict=True)]
            every = schema.readout == "every"
            self._stored[part, HOST] = (
                Ragged.of(scaled, HOST),
                Ragged.of(rows, HOST) if every else torch.from_numpy(np.stack(rows)),
            )
        self._same_length = len({len(x) for inputs, _ in parts.values() for x in inputs}) == 1

    @property
    def readout(self) -> str:  # type: ignore[override]
        return self._schema.readout

    def schema(self) -> DataSchema:
        return self._schema

    @property
    def input_size(self) -> int:
        return len(self._schema.inputs)

    @property
    def output_size(self) -> int:
        return self._schema.outputs

    @property
    def metric_name(self) -> str:
        return "accuracy" if self._schema.labels else "R²"

    @property
    def higher_is_better(self) -> bool:
        return True

    @property
    def baseline(self) -> float:
        if not self._schema.labels:
            return self.loss_unit
        targets = self._on("training", HOST)[1]
        assert isinstance(targets, Tensor)
        share = torch.bincount(targets[:, 0].long(), targets[:, 1].double())
        return float(torch.special.entr(share / share.sum()).sum())

    @property
    def loss_unit(self) -> float:
        predicted = self._schema.predicted
        return predicted[0].deviation ** 2 if len(predicted) == 1 and not self._schema.labels else 1.0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wanted, weights = targets[..., :-1], targets[..., -1]
        if self._schema.labels:
            each = F.cross_entropy(outputs, wanted[..., 0].long(), reduction="none")
        elif self._schema.horizon > 1:  # some of the steps ahead are beyond the end
            there = ~wanted.isnan()
            errors = torch.where(there, outputs - wanted.nan_to_num(), 0).square()
            each = errors.sum(-1) / there.sum(-1).clamp(min=1)
        else:
            each = (outputs - wanted).square().mean(-1)
        return (weights * each).sum() / weights.sum()

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not self._schema.labels:
            return 1 - self.loss(outputs, targets)
        weights = targets[..., -1]
        return (weights * (outputs.argmax(-1) == targets[..., 0])).sum() / weights.sum()

    def weight(self, batch: Batch) -> Tensor:
        return batch.targets[..., -1].sum()

    @property
    def solved_limit(self) -> float:
        return SOLVED

    def has_test(self) -> bool:
        return False

    def count(self) -> int:
        return len(self._on(self.part, HOST)[0])

    def take(self, rows: Tensor) -> Batch:
        inputs, targets = self._on(self.part, rows.device)
        x, lengths = inputs.padded(rows)
        running = inside(lengths, len(x))[..., None]
        y = targets.padded(rows)[0] * running if isinstance(targets, Ragged) else targets[rows]
        return Batch(x * running, y, None if self._same_length else lengths)

    def _on(self, part: str, device: torch.device) -> tuple[Ragged, Ragged | Tensor]:
        """Inputs and targets of a part on a device."""
        if (part, device) not in self._stored:
            inputs, targets = self._stored[part, HOST]
            moved = _moved(targets, device) if isinstance(targets, Ragged) else targets.to(device)
            self._stored[part, device] = _moved(inputs, device), moved
        return self._stored[part, device]


def _scaled(values: np.ndarray, scale: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    mean, deviation = scale
    return ((values - mean) / deviation).astype(np.float32)


def _weighted(targets: np.ndarray, weight: float) -> np.ndarray:
    """Targets ``(..., K)`` with their weight beside them, ``(..., K + 1)``."""
    return np.concatenate([targets, np.full((*targets.shape[:-1], 1), weight, np.float32)], -1)


def _moved(stored: Ragged, device: torch.device) -> Ragged:
    return stored._replace(values=stored.values.to(device), offsets=stored.offsets.to(device))
