"""A task on arrays in memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evenflow.lab.data import OwnSequences

from .chosen_loss import POWERS, ChosenLoss
from .own_data import OwnData


@dataclass(frozen=True)
class ArrayData(OwnData):
    """`OwnData` from arrays in memory, as `fit(model, (x, y))` makes it.

    Args:
        own: the sequences.
        digest: the SHA-256 of the arrays, by which a run that is resumed knows them.
        chosen: the loss and the metric. With a metric other than the usual one nothing counts as solved.
    """

    own: OwnSequences | None = dataclasses.field(default=None, kw_only=True, repr=False)
    digest: str = dataclasses.field(default="", kw_only=True)
    chosen: ChosenLoss = dataclasses.field(default=ChosenLoss(), kw_only=True)

    name = "arrays"

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.own is not None
        self.chosen.check(self.own.kind)

    @property
    def path(self) -> str:
        return "x"

    def sha256(self) -> str:
        return self.digest

    def source(self) -> Any:
        return self.digest

    def options(self) -> dict[str, Any]:
        own = ("own", "digest", "chosen", "file")
        return {key: value for key, value in super().options().items() if key not in own} | self.chosen.options()

    @property
    def metric_name(self) -> str:
        return self.chosen.metric_for(self._kind)[1]

    @property
    def higher_is_better(self) -> bool:
        return self.chosen.metric_for(self._kind)[2]

    @property
    def baseline(self) -> float:
        if self.chosen.loss is None or self._classes():
            return super().baseline
        every = torch.cat(
            [torch.from_numpy(y).reshape(-1, self.output_size) for y in self._parts().targets["training"]]
        )
        return float(self.loss(torch.zeros_like(every), every)) * self.loss_unit  # always answering the mean

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.chosen.loss_for(self._kind)(outputs, targets)

    @property
    def loss_unit(self) -> float:
        predicted = self._parts().schema.predicted
        power = 2 if self.chosen.loss is None else POWERS.get(str(self.chosen.loss), 0)
        return predicted[0].deviation ** power if len(predicted) == 1 and not self._classes() else 1.0

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        measure = self.chosen.metric_for(self._kind)[0]
        if self._classes():
            return measure(outputs, targets)
        mean, deviation = (torch.from_numpy(part).to(outputs) for part in self._parts().schema.output_scale)
        return measure(outputs * deviation + mean, targets * deviation + mean)

    def summary(self, metric: float) -> float:
        return math.sqrt(metric) if self.metric_name == "rmse" and not isinstance(self.chosen.metric, tuple) else metric

    @property
    def solved_limit(self) -> float | None:
        return super().solved_limit if self.chosen.metric in (None, "accuracy", "rmse") else None

    @property
    def _kind(self) -> str:
        return self._parts().own.kind

    def _need_file(self) -> None:
        pass

    def _names(self, targets: int) -> Sequence[str]:
        return ["y"] if targets == 1 else [f"y{column}" for column in range(targets)]

    def _read(self) -> OwnSequences:
        assert self.own is not None
        return self.own
