"""The search space of a sampler: lists to choose from, and ranges of numbers to draw from."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_type_hints

from evenflow import maps as evenflow_maps
from evenflow.lab.tasks import Task
from evenflow.lab.training.settings import Settings

from .candidates import (
    CHOSEN,
    OWN,
    Axes,
    Omitted,
    Point,
    candidate_table,
    count_parameters,
    kind_of,
    largest_size,
    products,
    read_map,
)

if TYPE_CHECKING:
    from optuna.trial import Trial

LOG = 10  # a range whose upper end is at least this many times its lower end is drawn from on a log scale
LR, HIDDEN = "lr", "hidden"
NUMBER = r"[+-]?[\d.]+(?:[eE][+-]?\d+)?"


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole numbers if both are written as such."""

    low: float
    high: float
    whole: bool

    @classmethod
    def read(cls, name: str, text: str) -> Range:
        """Read a range.

        >>> Range.read("lr", "1e-4:1e-1"), Range.read("hidden", "16:256")
        (Range(low=0.0001, high=0.1, whole=False), Range(low=16.0, high=256.0, whole=True))
        """
        match = re.fullmatch(rf"\s*({NUMBER})\s*:\s*({NUMBER})\s*", text)
        ends = [] if match is None else [float(each) for each in match.groups()]
        if match is None or not all(map(math.isfinite, ends)):
            raise ValueError(f"range {name} must be two numbers with a colon between them, got {text!r}")
        low, high = ends
        if not low < high:
            raise ValueError(f"range {name} must rise, from a lower number to a higher one, got {text!r}")
        return cls(low, high, all(re.fullmatch(r"[+-]?\d+", each) for each in match.groups()))

    @property
    def log(self) -> bool:
        """Whether numbers are drawn on a log scale."""
        return self.low > 0 and self.low * LOG <= self.high

    def draw(self, trial: Trial, name: str) -> float | int:
        """The number that the sampler suggests."""
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def __str__(self) -> str:
        return ":".join(f"{int(end)}" if self.whole else f"{end:g}" for end in (self.low, self.high))


@dataclass(frozen=True)
class Drawn:
    """What a sampler has drawn for a trial: a point, and settings of its training besides lr and optimizer."""

    point: Point
    training: Mapping[str, Any]


@dataclass(frozen=True)
class SearchSpace:
    """What a sampler draws from.

    Args:
        axes: maps, cells, activations, optimizers, learning rates and hidden sizes to choose from. A list of one is
            not drawn.
        ranges: numbers to draw from, by name: ``lr`` and ``hidden``, which replace the lists of the axes; a setting of
            the training, such as ``weight_decay``; an option of a map, such as ``margin``, which is drawn for the maps
            that have it; or an option of every layer and model, such as ``dropout``. Hidden sizes are rounded down to
            even numbers.

    A range is drawn from on a log scale if its upper end is ten times its lower end or more.
    """

    axes: Axes
    ranges: Mapping[str, Range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if HIDDEN in self.ranges and not (self.ranges[HIDDEN].whole and self.ranges[HIDDEN].low >= 2):
            raise ValueError(f"range hidden must be whole numbers of at least 2, got {self.ranges[HIDDEN]}")
        taken: dict[str, str] = {}
        for text in self.axes.maps:
            taken |= dict.fromkeys(read_map(text)[1], f"map {text}")
        taken |= dict.fromkeys(self.axes.system, "the options of the system")
        for name in self.ranges:
            if name in taken:
                raise ValueError(f"range {name} must not be set besides, got it in {taken[name]} too")
            if name in CHOSEN:
                raise ValueError(f"range {name} has another name here: give hidden, or a list of {name}s")
            if self._is_of_maps(name) and not any(_has(text, name) for text in self.axes.maps):
                maps = ", ".join(n for n in evenflow_maps.MAPS if name in (evenflow_maps.options_of(n) or []))
                raise ValueError(f"range {name} goes with the maps {maps}, got {', '.join(self.axes.maps)}")

    def settings(self) -> dict[str, Range]:
        """The ranges of settings of the training."""
        return {name: each for name, each in self.ranges.items() if name in Settings.__dataclass_fields__}

    def check(self, task: Task, parameters: int | None) -> None:
        """Raise a ValueError if no candidate can be made at the lower ends of the ranges."""
        reasons = []
        for map, cell, activation in products(self.axes):
            options = {name: int(each.low) if each.whole else each.low for name, each in self._options(map).items()}
            system = candidate_table(map, cell, activation, {**options, **self.axes.system})
            sizes = [int(self.ranges[HIDDEN].low)] if HIDDEN in self.ranges else self.axes.hidden
            size = min(sizes) if sizes else largest_size(task, system, parameters)
            count = count_parameters(task, system, size)
            if isinstance(count, int) and (parameters is None or count <= parameters):
                return
            why = count if isinstance(count, str) else f"{count:,} parameters, and the limit is {parameters:,}"
            reasons.append(f"{map} {cell} {activation} with {size} units: {why}")
        raise ValueError(f"no candidate can be made at the lower ends of the ranges; the first, {reasons[0]}")

    def _options(self, map: str) -> dict[str, Range]:
        """The ranges of options of the layers and the model, those of this map among them."""
        own = (LR, HIDDEN, *self.settings())
        return {
            name: each
            for name, each in self.ranges.items()
            if name not in own and (not self._is_of_maps(name) or _has(map, name))
        }

    def draw(self, trial: Trial, task: Task, parameters: int | None) -> Drawn | Omitted:
        """The candidate that the sampler suggests, or why it is none: too large, or impossible to make."""
        cell = _choice(trial, "cell", self.axes.cells)
        kind = kind_of(cell)
        map = _choice(trial, "map", self.axes.maps) if kind.mapped else "free"
        activation = _choice(trial, "activation", self.axes.activations) if kind.activated else OWN
        optimizer = _choice(trial, "optimizer", self.axes.optimizers)
        lr = self.ranges[LR].draw(trial, LR) if LR in self.ranges else _choice(trial, LR, self.axes.lrs)
        options = {name: each.draw(trial, name) for name, each in self._options(map).items()}
        system = candidate_table(map, cell, activation, {**options, **self.axes.system})
        training = {
            name: _of_its_type(name, each.draw(trial, name))
            for name, each in self.settings().items()
            if name != LR and not (name == "map_lr" and map == "free")
        }
        size = self._size(trial, task, system, parameters)
        count = count_parameters(task, system, size)
        if isinstance(count, str):
            return Omitted(map, cell, activation, size, None, f"it cannot be made: {count}")
        if parameters is not None and count > parameters:
            reason = f"{count:,} parameters, and the limit is {parameters:,}"
            return Omitted(map, cell, activation, size, count, reason)
        point = Point(map, cell, activation, size, optimizer, float(lr), count, system | {"hidden_size": size})
        return Drawn(point, training)

    def _size(self, trial: Trial, task: Task, system: Mapping[str, Any], parameters: int | None) -> int:
        if HIDDEN in self.ranges:
            size = int(self.ranges[HIDDEN].draw(trial, HIDDEN))
            return size - size % 2  # some activations and maps pair units
        if self.axes.hidden:
            return int(_choice(trial, HIDDEN, self.axes.hidden))
        return largest_size(task, system, parameters)

    def _is_of_maps(self, name: str) -> bool:
        known = any(name in (evenflow_maps.options_of(map) or []) for map in evenflow_maps.MAPS)
        return known and name not in Settings.__dataclass_fields__

    def request(self) -> dict[str, str]:
        """The ranges as JSON can hold them."""
        return {name: str(each) for name, each in self.ranges.items()}


def _choice(trial: Trial, name: str, values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else trial.suggest_categorical(name, list(values))


def _has(map: str, option: str) -> bool:
    """Whether a map, perhaps with options in brackets, takes this option."""
    return option in (evenflow_maps.options_of(read_map(map)[0]) or [])


def _of_its_type(name: str, value: float | int) -> float | int:
    """The value of a setting; people write 1:10 for 1.0:10.0."""
    return value if get_type_hints(Settings)[name] in (int, int | None) else float(value)
