"""The weights of a new recurrent layer: their names, shapes and starting values, and the maps on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from evenflow import maps
from evenflow.cells import FunctionCell, Matrix
from evenflow.checks import unknown, unknown_option
from evenflow.maps.blocks import Blocks

if TYPE_CHECKING:
    from evenflow.layers.recurrent import Recurrent

OneMap = str | Callable[[int], maps.Map]
MapChoice = OneMap | Mapping[str, OneMap]  # one for all matrices that take one, or one for each by its name


def check_map(layer: Recurrent, map: MapChoice, map_options: Mapping[str, Any]) -> None:
    """Refuse a map for a matrix that the layer's cell does not have, and options that the map does not have."""
    cell = layer.cell
    matrices = {matrix.name: matrix for matrix in cell.matrices(layer.hidden_size)}
    if isinstance(map, Mapping):
        for name in map:
            if name not in matrices:
                raise ValueError(unknown(f"matrix of {cell.name} in map", name, matrices))
    elif map != "free" and not any(matrix.mapped for matrix in matrices.values()):
        hint = f"; for a map on each block give map={{{next(iter(matrices))!r}: {map!r}}}"
        own = hint if isinstance(cell, FunctionCell) else ""
        raise ValueError(f"{cell.name} has no map on its gates, so map must be 'free', got {map!r}{own}")
    for choice in map.values() if isinstance(map, Mapping) else [map]:
        for name in map_options:
            if (options := maps.options_of(choice)) is not None and name not in options:
                raise ValueError(unknown_option(type(layer), name, f"its map {choice!r}", options))


def start_weights(
    layer: Recurrent,
    map: MapChoice,
    map_options: Mapping[str, Any],
    input_range: float | None,
    generator: torch.Generator | None,
) -> dict[str, torch.Size]:
    """Register all weights of a layer with their starting values; returns their shapes by name.

    Starting values are drawn on the CPU, whatever the default device is.
    """
    shapes: dict[str, torch.Size] = {}
    with torch.device("cpu"):
        for index, suffix in enumerate(layer.suffixes):
            names = _start_direction(layer, index, suffix, input_range, generator)
            shapes |= {name: layer.get_parameter(name).shape for name in names}
            for matrix in layer.cell.matrices(layer.hidden_size):
                _start_matrix(layer, matrix, matrix.name + suffix, map, map_options, generator)
    return shapes


def _start_direction(
    layer: Recurrent, index: int, suffix: str, input_range: float | None, generator: torch.Generator | None
) -> list[str]:
    """Register the weights of one layer and direction; those of recurrent matrices without values."""
    cell, hidden_size, directions = layer.cell, layer.hidden_size, 2 if layer.bidirectional else 1
    width = layer.input_size if index < directions else directions * hidden_size
    start = cell.start(width, hidden_size, layer.bias, generator)
    if input_range is not None:
        for name in start:
            if name.startswith("weight_ih"):
                start[name].uniform_(-input_range, input_range, generator=generator)
    if layer.initial_state == "learned":
        start |= {f"{name}0": torch.zeros(hidden_size) for name in cell.states}
    start |= {m.name: torch.empty(m.blocks * m.size, m.size) for m in cell.matrices(hidden_size)}
    for name, tensor in start.items():
        layer.register_parameter(name + suffix, nn.Parameter(tensor))
    return [name + suffix for name in start]


def _start_matrix(
    layer: Recurrent,
    matrix: Matrix,
    name: str,
    map: MapChoice,
    map_options: Mapping[str, Any],
    generator: torch.Generator | None,
) -> None:
    """Set a recurrent matrix to its starting value and, where the cell allows it, put the map on it."""
    choice = map if not isinstance(map, Mapping) else map.get(matrix.name, "free")
    if matrix.mapped or (isinstance(map, Mapping) and matrix.name in map):
        matrix_map = maps.make(choice, matrix.size, **map_options)
        if matrix.blocks > 1:
            matrix_map = Blocks(matrix_map, matrix.blocks, tuple(range(matrix.blocks)))
        maps.attach(layer, name, matrix_map, generator=generator)
        if getattr(layer, name).is_complex() and not layer.cell.takes_complex:
            raise ValueError(f"map {map!r} makes complex matrices, which the {layer.cell.name} cell has not")
        return
    # Options of a free map (where to start) hold for the free matrices too; those of another map do not.
    free = maps.make("free", matrix.size, **(map_options if map == "free" else {}))
    with torch.no_grad():
        getattr(layer, name).copy_(torch.cat([free(*free.start(generator)) for _ in range(matrix.blocks)]))
