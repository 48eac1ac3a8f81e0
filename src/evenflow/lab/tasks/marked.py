"""Sequences of pairs in which a marker points at two values: how long they are and where the markers stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from evenflow.checks import whole_number

from .draw import Draw
from .task import Task, option

LEAST_MARKED = 10  # below ten steps there is no first tenth to mark
TOLERANCE = 0.04  # an answer this near is right
SOLVED_ACCURACY = 0.99  # solved when under 1 % are wrong


def draw_places(length: int, draw: Draw) -> tuple[Tensor, Tensor]:
    """Lengths ``(B,)`` and marked steps ``(2, B)`` by the rules of Galvan's artificial tasks.

    With T = `length`, each sequence has its own length L, uniform in ``[T, T + T/10]``. The first marker is in the
    first ``L/10`` steps, the second in ``[4L/10, 5L/10]``, both counted from 0.
    """
    lengths = draw.whole(length, length + length // 10)
    first = draw.whole(0, lengths // 10 - 1)
    return lengths, torch.stack((first, draw.whole(-(-4 * lengths // 10), lengths // 2)))


def with_markers(values: Tensor, places: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Inputs ``(T, B, 2)``: the values ``(T, B)``, zero from `lengths` on, and 1 at the marked places."""
    markers = torch.zeros_like(values).scatter_(0, places, 1.0)
    if lengths is not None:
        values = values * (torch.arange(len(values), device=values.device)[:, None] < lengths)
    return torch.stack((values, markers), -1)


@dataclass(frozen=True)
class Marked(Task):
    """What Galvan's tasks over two marked values share: one number to answer with, and a share of right answers."""

    length: int = option(100, "steps T of the shortest sequence; the longest has a tenth more")

    readout: ClassVar[str] = "last"

    def __post_init__(self) -> None:
        whole_number("length", self.length, LEAST_MARKED)

    @property
    def input_size(self) -> int:
        return 2

    @property
    def output_size(self) -> int:
        return 1

    @property
    def metric_name(self) -> str:
        return "accuracy"

    @property
    def higher_is_better(self) -> bool:
        return True

    def solved(self, metric: float) -> bool:
        return metric > SOLVED_ACCURACY
