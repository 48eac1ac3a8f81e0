"""The candidates of a sweep: combinations of map, cell, activation, hidden size, optimizer and learning rate."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenflow import activations
from evenflow import maps as evenflow_maps
from evenflow.checks import one_of, unknown, whole_number
from evenflow.lab.tasks import Task
from evenflow.lab.terminal import read_value
from evenflow.lab.training.config import build
from evenflow.lab.training.optimizers import OPTIMIZERS
from evenflow.runtime.import_path import COLON
from evenflow.systems import create, system_name

OWN = "own"  # the activation of a cell without a choice
STEP, LARGEST, DEFAULT = 16, 512, 128  # hidden sizes: multiples of 16 up to 512; 128 without a limit on parameters


@dataclass(frozen=True)
class CellKind:
    """The system of a cell, and whether its map and its activation can be chosen."""

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

CHOSEN = ("name", "map", "activation", "hidden_size")  # options of a system that the axes choose


@dataclass(frozen=True)
class Axes:
    """The axes of a sweep, which tries all combinations.

    Args:
        maps: names of `maps.MAPS`, with options in brackets: ``"svd(margin=0.1)"``.
        cells: names of `CELLS`, or systems of your own as import paths. An LSTM has no map and appears once; GRU, LSTM,
            complex and your own have their own activation.
        activations: names as in `activations`, also ``"leaky(0.5)"``.
        hidden: hidden sizes. Default: the largest multiple of 16, up to 512, within the limit on parameters, and 128
            without a limit.
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
            kind_of(cell)
        for activation in self.activations:
            activations.make(activation)
        for size in self.hidden or ():
            whole_number("hidden", size, 1)
        for optimizer in self.optimizers:
            one_of("optimizers", optimizer, OPTIMIZERS)
        for name in CHOSEN:
            if name in self.system:
                raise ValueError(f"system must leave {name} to the axes of the sweep, got {self.system[name]!r}")


@dataclass(frozen=True)
class Point:
    """A candidate: a model and how it learns.

    Attributes:
        parameters: trained numbers of the whole model, readout and embedding included.
        system: the table of a config that makes the model.
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
        """A name for folders: the point's options with hyphens between them."""
        words = (self.map, self.cell, self.activation, str(self.hidden_size), self.optimizer, f"{self.lr:g}")
        return "-".join(re.sub(r"[^\w.+=]+", "-", word).strip("-") for word in words)

    def __str__(self) -> str:
        words = f"{self.map} {self.cell} {self.activation}, {self.hidden_size} units"
        return f"{words}, {self.optimizer} at {self.lr:g}"


@dataclass(frozen=True)
class Omitted:
    """A model that is no candidate, and the reason; `parameters` is None if it cannot be made."""

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
    for map, cell, activation in products(axes):
        system = candidate_table(map, cell, activation, axes.system)
        sizes = axes.hidden or [largest_size(task, system, parameters)]
        for size in sizes:
            count = count_parameters(task, system, size)
            if isinstance(count, str):
                omitted.append(Omitted(map, cell, activation, size, None, f"it cannot be made: {count}"))
            elif parameters is not None and count > parameters:
                reason = f"{count:,} parameters, and the limit is {parameters:,}"
                omitted.append(Omitted(map, cell, activation, size, count, reason))
            else:
                points += [
                    Point(map, cell, activation, size, optimizer, lr, count, system | {"hidden_size": size})
                    for optimizer, lr in itertools.product(axes.optimizers, axes.lrs)
                ]
    if not points:
        first = omitted[0]
        model = f"{first.map} {first.cell} {first.activation} with {first.hidden_size} units"
        raise ValueError(f"no candidate is left of {len(omitted)}; the first, {model}: {first.reason}")
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
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    name, inside = match.groups() if match else (text, None)
    if name not in evenflow_maps.MAPS:
        raise ValueError(unknown("map", name, evenflow_maps.MAPS))
    names = evenflow_maps.options_of(name) or []
    options: dict[str, Any] = {}
    for part in filter(str.strip, (inside or "").split(",")):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in names:
            raise ValueError(f"map {name} has no option {key!r}; it takes {', '.join(names) or 'none'}")
        options[key] = read_value(value)
    return name, options


def kind_of(cell: str) -> CellKind:
    """The row of `CELLS`, or that of a system of the user's own, whose map can be chosen if it takes one."""
    if cell in CELLS:
        return CELLS[cell]
    if COLON not in (path := system_name(cell)):
        raise ValueError(unknown("cell", cell, CELLS))
    create(path, 2, STEP)
    try:
        mapped = bool(create(path, 2, STEP, map="exponential"))
    except (ValueError, TypeError):
        mapped = False
    return CellKind(path, mapped, activated=False)


def products(axes: Axes) -> Iterator[tuple[str, str, str]]:
    """Map, cell and activation of every model; a cell without a choice of map or activation appears once for it."""
    for cell in axes.cells:
        kind = kind_of(cell)
        for map in axes.maps if kind.mapped else ["free"]:
            for activation in axes.activations if kind.activated else [OWN]:
                yield map, cell, activation


def candidate_table(map: str, cell: str, activation: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The table of a system, without its hidden size."""
    name, map_options = read_map(map)
    kind = kind_of(cell)
    # The bounds on SGORNN's gates need a matrix that preserves lengths; a free matrix has the free gates of FastRNN.
    system = "fastrnn" if cell == "gated" and name == "free" else kind.system
    chosen = {"map": name, **map_options} if kind.mapped else {}
    return {"name": system, **chosen, **({"activation": activation} if kind.activated else {}), **options}


def largest_size(task: Task, system: Mapping[str, Any], parameters: int | None) -> int:
    """The largest hidden size within the limit, or the smallest size if all are beyond it."""
    if parameters is None:
        return DEFAULT
    low, high = 1, LARGEST // STEP
    while low < high:  # the largest multiple within the limit lies from low to high; counts grow with the size
        middle = (low + high + 1) // 2
        count = count_parameters(task, system, middle * STEP)
        if isinstance(count, int) and count <= parameters:
            low = middle
        else:
            high = middle - 1
    return low * STEP


def count_parameters(task: Task, system: Mapping[str, Any], size: int) -> int | str:
    """The trained parameters of a model, or the reason why it cannot be made."""
    try:
        model = build(task, {**system, "hidden_size": size}, seed=0)
    except ValueError as error:
        return str(error)
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
