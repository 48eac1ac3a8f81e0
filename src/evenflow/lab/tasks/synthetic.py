"""Base of the tasks whose sequences are drawn at random, and of those with markers at two values of a sequence."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from evenflow.checks import whole_number

from .task import Batch, Task, move, option

LEAST_MARKED = 10  # a shorter sequence has no step in its first tenth
TOLERANCE = 0.04  # an output this near to the target is right
SOLVED_ACCURACY = 0.99


class Draw:
    """Random draws for a batch of `size` sequences, on the device of the generator.

    >>> draw = Draw(3, torch.Generator().manual_seed(0))
    >>> draw.unit(5).shape, draw.whole(0, 9).shape, draw.places(2, 10).shape
    (torch.Size([5, 3]), torch.Size([3]), torch.Size([2, 3]))
    """

    def __init__(self, size: int, generator: torch.Generator) -> None:
        self.size, self.generator = size, generator

    def unit(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1) of shape ``(*shape, size)``."""
        return torch.rand(*shape, self.size, generator=self.generator, device=self.generator.device)

    def below(self, count: int, *shape: int) -> Tensor:
        """Whole numbers, uniform from 0 to ``count - 1``, of shape ``(*shape, size)``."""
        return torch.randint(count, (*shape, self.size), generator=self.generator, device=self.generator.device)

    def whole(self, low: Tensor | int, high: Tensor | int) -> Tensor:
        """Whole numbers, uniform from `low` to `high` inclusive, one for each sequence."""
        count = high - low + 1
        return low + (self.unit() * count).long().clamp(max=count - 1)  # the product may round up to `count`

    def places(self, count: int, steps: int) -> Tensor:
        """`count` different steps below `steps` in ascending order, ``(count, size)``, uniform over all choices."""
        chosen = self.below(steps, 1)
        for drawn in range(1, count):
            place = self.below(steps - drawn)  # counts the steps that are not chosen yet
            for other in chosen:
                place = place + (place >= other)
            chosen = torch.cat((chosen, place[None])).sort(0).values
        return chosen


class Synthetic(Task):
    """A task whose sequences are drawn at random for every batch. A subclass implements `draw`.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class LastNumber(Synthetic):
    ...     length: int = option(30, "steps of a sequence", whole=1)
    ...     readout, input_size, output_size = "last", 1, 1
    ...     metric_name, higher_is_better, baseline, solved_limit = "mse", False, 1 / 12, 0.01
    ...     def draw(self, draw):
    ...         x = draw.unit(self.length)
    ...         return Batch(x[..., None], x[-1][:, None])
    ...     def loss(self, outputs, targets):
    ...         return (outputs - targets).square().mean()
    ...     metric = loss
    >>> LastNumber().batch(4, torch.Generator().manual_seed(0)).inputs.shape
    torch.Size([30, 4, 1])
    """

    @abstractmethod
    def draw(self, draw: Draw) -> Batch:
        """Draw a batch."""

    def batch(self, size: int, generator: torch.Generator, device: torch.device | str | None = None) -> Batch:
        whole_number("size", size, 1)
        return move(self.draw(Draw(size, generator)), device)


def draw_places(length: int, draw: Draw) -> tuple[Tensor, Tensor]:
    """Draw lengths ``(B,)`` and marked steps ``(2, B)`` by the rules of Galvan's artificial tasks.

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
class Marked(Synthetic):
    """Base of Galvan's tasks over two marked values: one output, judged by the share of right answers."""

    length: int = option(100, "steps T of the shortest sequence; the longest has a tenth more", whole=LEAST_MARKED)

    readout = "last"
    input_size = 2
    output_size = 1
    metric_name = "accuracy"
    higher_is_better = True
    solved_limit = SOLVED_ACCURACY
    limit_excluded = True
