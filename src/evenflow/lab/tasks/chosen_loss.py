"""A loss and a metric that the user chooses, by name or as functions, for data of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from evenflow.checks import one_of

from .classification import PADDING

Measure = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of scores ``(..., K)`` and classes ``(...)``; the padding of ragged sequences is left out."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=PADDING)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of classes that are right."""
    return (outputs.argmax(-1) == targets).sum() / (targets != PADDING).sum()


def mean_of(each: Callable[..., Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean of an error of every number; a target that is nan, as past the end of a sequence, is left out."""
    running = ~targets.isnan()
    return torch.where(running, each(outputs, targets.nan_to_num(), reduction="none"), 0).sum() / running.sum()


NUMBERS: dict[str, Measure] = {
    "mse": partial(mean_of, F.mse_loss),
    "mae": partial(mean_of, F.l1_loss),
    "huber": partial(mean_of, F.huber_loss),
}
LOSSES: dict[str, Measure] = {"cross_entropy": cross_entropy, **NUMBERS}
POWERS = {"mse": 2, "mae": 1}  # of the unit of the targets, in which a loss is measured
METRICS: dict[str, Measure] = {"accuracy": accuracy, "rmse": NUMBERS["mse"], "mae": NUMBERS["mae"]}


@dataclass(frozen=True)
class ChosenLoss:
    """A loss and a metric, checked.

    Args:
        loss: one of `LOSSES`, or a function of outputs and targets that returns a scalar. Default: that of the targets.
        metric: one of `METRICS`, or a function and "max" or "min", whichever is better. Default: that of the targets.
    """

    loss: str | Measure | None = None
    metric: str | tuple[Measure, str] | None = None

    def __post_init__(self) -> None:
        if self.loss is not None and not callable(self.loss):
            one_of("loss", self.loss, LOSSES)
        if isinstance(self.metric, tuple) and len(self.metric) == 2 and callable(self.metric[0]):
            one_of("the second part of metric", self.metric[1], ("max", "min"))
        elif callable(self.metric):
            raise ValueError(
                f"metric must say which value is better: metric=({name_of(self.metric)}, 'max') or (..., 'min')"
            )
        elif self.metric is not None:
            one_of("metric", self.metric, METRICS)

    @property
    def kind(self) -> str | None:
        """The kind of targets that the names go with, None if they do not say."""
        kinds = {"classification" if name in ("cross_entropy", "accuracy") else "regression" for name in self._names()}
        if len(kinds) > 1:
            raise ValueError(f"loss and metric must go with the same targets, got {self.loss!r} and {self.metric!r}")
        return next(iter(kinds), None)

    def _names(self) -> list[str]:
        return [name for name in (self.loss, self.metric) if isinstance(name, str)]

    def check(self, kind: str) -> None:
        """Raise a ValueError if the names do not go with targets of this kind."""
        own = None if self.kind is None else self.kind == "classification"
        if own is not None and own != (kind == "classification"):
            names = " and ".join(map(repr, self._names()))
            raise ValueError(f"loss and metric must go with the targets, which are for {kind}, got {names}")

    def options(self) -> dict[str, str]:
        """The names, for the config of a run."""
        chosen = {"loss": self.loss, "metric": self.metric[0] if isinstance(self.metric, tuple) else self.metric}
        return {key: name_of(value) for key, value in chosen.items() if value is not None}

    def loss_for(self, kind: str) -> Measure:
        """The loss as a function."""
        name = self.loss or ("cross_entropy" if kind == "classification" else "mse")
        return LOSSES[name] if isinstance(name, str) else name

    def metric_for(self, kind: str) -> tuple[Measure, str, bool]:
        """The metric as a function, its name, and whether a larger value is better."""
        if isinstance(self.metric, tuple):
            return self.metric[0], name_of(self.metric[0]), self.metric[1] == "max"
        name = self.metric or ("accuracy" if kind == "classification" else "rmse")
        return METRICS[name], name, name == "accuracy"


def name_of(function: Any) -> str:
    """The name of a function, or that of the class of another object that can be called."""
    return function if isinstance(function, str) else getattr(function, "__name__", type(function).__name__)
