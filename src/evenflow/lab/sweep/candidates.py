"""The candidates of a sweep: points of map × cell × activation, in sizes within a limit, at several learning rates."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenflow import activations as activation_room
from evenflow import maps as map_room
from evenflow.checks import one_of, unknown, whole_number
from evenflow.lab.tasks import Task
from evenflow.lab.terminal import read_value
from evenflow.lab.training.config import build
from evenflow.lab.training.optimizers import OPTIMIZERS

OWN = "own"  # the activation of a cell that has no choice
STEP, LARGEST, USUAL = 16, 512, 128  # hidden sizes: multiples of, up to; and the one without a limit


@dataclass(frozen=True)
class CellKind:
    """The system that a cell is, and which of its two other factors can be chosen."""

    system: str
    mapped: bool = True
    activated: bool = True


CELLS: dict[str, CellKind] = {
    "elman": CellKind("rnn"),
    "gated": CellKind("sgornn"),
    "scrn": CellKind("scrn"),
    "gru": CellKind("gru", activated=False),
    "lstm": CellKind("lstm", mapped=False, activated=False),
    "complex": CellKind("full-urnn", activated=False),
}


CHOSEN = ("name", "map", "activation", "hidden_size")  # of a system, by the axes


@dataclass(frozen=True)
class Axes:
    """What a sweep tries: every combination of these.

    Args:
        maps: names of `maps.MAPS`, with options in brackets, as ``"svd(margin=0.1)"``.
        cells: names of `CELLS`. An LSTM has no map and appears once; GRU, LSTM and complex have their own activation.
        activations: names as in `activations`, ``"leaky(0.5)"`` among them.
        hidden: hidden sizes; None for the largest multiple of 16, up to 512, within the limit on parameters, and 128
            where there is no limit.
        optimizers, lrs: how points learn.
        system: options of every layer and model, such as ``{"initial_state": "learned", "readout_units": 64}``.
    """

    maps: Sequence[str] = ("exponential", "householder", "rotations", "svd")
    cells: Sequence[str] = ("elman", "gated", "gru", "lstm")
    activations: Sequence[str] = ("relu", "abs", "tanh", "modrelu")
    hidden: Sequence[int] | None = None
    optimizers: Sequence[str] = ("adam",)
    lrs: Sequence[float] = (1e-2, 1e-3, 1e-4)
    system: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("maps", "cells", "activations", "optimizers", "lrs"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one, got none")
        for text in self.maps:
            read_map(text)
        for cell in self.cells:
            if cell not in CELLS:
                raise ValueError(unknown("cell", cell, CELLS))
        for activation in self.activations:
            activation_room.make(activation)
        for size in self.hidden or ():
            whole_number("hidden", size, 1)
        for optimizer in self.optimizers:
            one_of("optimizers", optimizer, OPTIMIZERS)
        for name in CHOSEN:
            if name in self.system:
                raise ValueError(f"system must leave {name} to the axes of the sweep, got {self.system[name]!r}")


@dataclass(frozen=True)
class Point:
    """One candidate: a model and how it learns.

    Attributes:
        parameters: trained numbers of the whole model, readout and embedding among them.
        system: the table of a config that makes it.
    """

    map: str
    cell: str
    activation: str
    hidden_size: int
    optimizer: str
    lr: float
    parameters: int
    system: Mapping[str, Any] = field(hash=False, repr=False)

    @property
    def name(self) -> str:
        """A name for its runs' folders: what it is, with hyphens."""
        words = (self.map, self.cell, self.activation, str(self.hidden_size), self.optimizer, f"{self.lr:g}")
        return "-".join(re.sub(r"[^\w.+=]+", "-", word).strip("-") for word in words)

    def __str__(self) -> str:
        words = f"{self.map} {self.cell} {self.activation}, {self.hidden_size} units"
        return f"{words}, {self.optimizer} at {self.lr:g}"


@dataclass(frozen=True)
class Omitted:
    """A model that is no candidate: its parameters, where they are too many, and why."""

    map: str
    cell: str
    activation: str
    hidden_size: int
    parameters: int | None
    reason: str


def candidates(task: Task, axes: Axes, parameters: int | None = None) -> tuple[list[Point], list[Omitted]]:
    """Every point of the axes whose model has at most `parameters` trained numbers, and the models left out.

    >>> points, omitted = candidates(Digits(), Axes(cells=["elman"], lrs=[1e-3]), 137000)
    >>> max(point.parameters for point in points), len(omitted)
    (136970, 0)
    """
    if parameters is not None:
        whole_number("parameters", parameters, 1)
    points: list[Point] = []
    omitted: list[Omitted] = []
    for map, cell, activation in _products(axes):
        system = _system(map, cell, activation, axes.system)
        tried = [_count(task, system, size) for size in axes.hidden or ()] or [_largest(task, system, parameters)]
        for found in tried:
            if found.count is None or (parameters is not None and found.count > parameters):
                reason = found.problem or f"{found.count:,} parameters, and the limit is {parameters:,}"
                omitted.append(Omitted(map, cell, activation, found.size, found.count, reason))
                continue
            whole = system | {"hidden_size": found.size}
            points += [
                Point(map, cell, activation, found.size, optimizer, lr, found.count, whole)
                for optimizer, lr in itertools.product(axes.optimizers, axes.lrs)
            ]
    if not points:
        raise ValueError(f"no candidate is left of {len(omitted)}; the first, {_said(omitted[0])}: {omitted[0].reason}")
    names = [point.name for point in points]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"candidates must differ from each other, got {name} more than once")
    return points, omitted


def read_map(text: str) -> tuple[str, dict[str, Any]]:
    """The map's name and its options.

    >>> read_map("svd(reflectors=16, margin=0.1)")
    ('svd', {'reflectors': 16, 'margin': 0.1})
    """
    found = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    name, inside = found.groups() if found else (text, None)
    if name not in map_room.MAPS:
        raise ValueError(unknown("map", name, map_room.MAPS))
    known = map_room.options_of(name) or []
    options: dict[str, Any] = {}
    for part in filter(str.strip, (inside or "").split(",")):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in known:
            raise ValueError(f"map {name} has no option {key!r}; it takes {', '.join(known) or 'none'}")
        options[key] = read_value(value)
    return name, options


@dataclass(frozen=True)
class _Found:
    size: int
    count: int | None
    problem: str = ""


def _products(axes: Axes) -> Iterator[tuple[str, str, str]]:
    """Map, cell and activation; factors that a cell does not have are not multiplied out."""
    for cell in axes.cells:
        kind = CELLS[cell]
        for map in axes.maps if kind.mapped else ["free"]:
            for activation in axes.activations if kind.activated else [OWN]:
                yield map, cell, activation


def _system(map: str, cell: str, activation: str, options: Mapping[str, Any]) -> dict[str, Any]:
    name, map_options = read_map(map)
    kind = CELLS[cell]
    # The bounds on the gates are there for a matrix that keeps lengths; a free one has FastRNN's free gates.
    system = "fastrnn" if cell == "gated" and name == "free" else kind.system
    chosen = {"map": name, **map_options} if kind.mapped else {}
    return {"name": system, **chosen, **({"activation": activation} if kind.activated else {}), **options}


def _largest(task: Task, system: Mapping[str, Any], parameters: int | None) -> _Found:
    """The largest size within the limit, or the smallest one if even that is beyond it."""
    if parameters is None:
        return _count(task, system, USUAL)
    best = _count(task, system, STEP)
    low, high = 1, LARGEST // STEP
    while low < high:  # the largest multiple that fits lies from low to high; counts grow with the size
        middle = (low + high + 1) // 2
        found = _count(task, system, middle * STEP)
        if found.count is not None and found.count <= parameters:
            best, low = found, middle
        else:
            high = middle - 1
    return best


def _count(task: Task, system: Mapping[str, Any], size: int) -> _Found:
    try:
        model = build(task, {**system, "hidden_size": size}, seed=0)
    except ValueError as error:
        return _Found(size, None, f"it cannot be made: {error}")
    return _Found(size, sum(p.numel() for p in model.parameters() if p.requires_grad))


def _said(omitted: Omitted) -> str:
    return f"{omitted.map} {omitted.cell} {omitted.activation} with {omitted.hidden_size} units"
