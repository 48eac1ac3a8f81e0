"""One system: a row of the table of systems, or a cell or a layer of the user's own in the form of a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from evenflow.cells import Cell, CellMaker
from evenflow.layers.recurrent import Recurrent


@dataclass(frozen=True)
class System:
    """One row of the table: a layer with the settings that make it this system.

    Attributes:
        layer: the class of the layer, or a function with its signature.
        equation: the step and its ingredients: activation f, recurrent matrix U.
        document: where the system is from.
        map: the map of the recurrent matrix; None for a layer that takes no map.
        map_options: options of `map`, left out if the user chooses another map.
        options: options of the layer.

    >>> create("exprnn", 2, 128).cell.activation.key == systems()["exprnn"].options["activation"]
    True
    """

    layer: Callable[..., Recurrent]
    equation: str
    document: str
    map: str | None = "free"
    map_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def own_system(value: Any, name: str) -> System:
    """The system that an object of the user's own is.

    Args:
        value: a `System`; a cell, its class, or a function with `@evenflow.cell`; a class of layers; or a function of
            the input size, the hidden size and options that returns a layer.
        name: of the object in messages.
    """
    if isinstance(value, System):
        return value
    if isinstance(value, Cell | CellMaker) or (isinstance(value, type) and issubclass(value, Cell)):
        return System(_of_cell(value), value.equation if isinstance(value, Cell) else _first_line(value), "", map=None)
    if not callable(value):
        raise ValueError(
            f"system {name!r} must be a cell, a class of layers or a function that makes a layer, got {value!r}"
        )
    return System(_checked(value, name), _first_line(value), "", map=None)


def _first_line(value: Any) -> str:
    return (value.__doc__ or "").strip().split("\n")[0]


def _of_cell(cell: Any) -> Callable[..., Recurrent]:
    """A function that makes layers of a cell; among its options are the constants of the cell."""
    if isinstance(cell, Cell):
        return partial(Recurrent, cell)
    constants = cell.constants if isinstance(cell, CellMaker) else inspect.signature(cell).parameters

    def make(input_size: int, hidden_size: int, *positional: Any, **options: Any) -> Recurrent:
        chosen = {option: options.pop(option) for option in constants if option in options}
        return Recurrent(cell(**chosen), input_size, hidden_size, *positional, **options)

    return make


def _checked(make: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`make` with a check of what it returns, and its signature."""

    def checked(*sizes: Any, **options: Any) -> Any:
        layer = make(*sizes, **options)
        if not isinstance(layer, nn.Module) or not isinstance(getattr(layer, "hidden_size", None), int):
            raise ValueError(
                f"system {name!r} must make a layer, a module with an input_size and a hidden_size, got {layer!r}"
            )
        return layer

    checked.__signature__ = inspect.signature(make)  # type: ignore[attr-defined]
    return checked
