"""The weights of a new recurrent layer: their names, shapes and starting values, and the maps on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from evenflow import maps
from evenflow.cells import FunctionCell, Matrix, Regularised
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
        if choice != "free" and isinstance(cell, Regularised) and cell.weight_dropout:
            raise ValueError(
                f"weight_dropout must be 0 with map {choice!r}, whose constraint a matrix with zeros would break, "
                f"got {cell.weight_dropout}"
            )
        for name in map_options:
            if (options := maps.options_of(choice)) is not None and name not in options:
                raise ValueError(unknown_option(type(layer), name, f"its map {choice!r}", options))


def start_weights(
    layer: Recurrent,
    map: MapChoice,
    map_options: Mapping[str, Any],
    generator: torch.Generator | None,
) -> dict[str, torch.Size]:
    """Register all weights of a layer with their starting values; returns their shapes by name.

    Starting values are drawn on the CPU, whatever the default device is.
    """
    shapes: dict[str, torch.Size] = {}
    with torch.device("cpu"):
        for index, suffix in enumerate(layer.suffixes):
            values = _draw(layer, index, generator)
            values |= {m.name: torch.empty(m.blocks * m.size, m.size) for m in layer.cell.matrices(layer.hidden_size)}
            for name, value in values.items():
                layer.register_parameter(name + suffix, nn.Parameter(value))
                shapes[name + suffix] = value.shape
            for matrix in layer.cell.matrices(layer.hidden_size):
                _start_matrix(layer, matrix, matrix.name + suffix, map, map_options, generator)
    return shapes


def reset_weights(layer: Recurrent, generator: torch.Generator | None) -> None:
    """Write new starting values into all weights of a layer, in the order in which a new layer draws them."""
    with torch.no_grad(), torch.device("cpu"):
        for index, suffix in enumerate(layer.suffixes):
            for name, value in _draw(layer, index, generator).items():
                getattr(layer, name + suffix).copy_(value)
            for matrix in layer.cell.matrices(layer.hidden_size):
                name = matrix.name + suffix
                if not parametrize.is_parametrized(layer, name):
                    getattr(layer, name).copy_(_free_matrix(layer, matrix, generator))
                    continue
                parametrized = layer.get_submodule(f"parametrizations.{name}")
                made = cast(maps.Map, parametrized[0])  # type: ignore[index]
                made.reset_buffers()
                raw = parametrized.parameters(recurse=False)
                for parameter, value in zip(raw, made.start(generator), strict=True):
                    parameter.copy_(value)


def _draw(layer: Recurrent, index: int, generator: torch.Generator | None) -> dict[str, torch.Tensor]:
    """Starting values of one layer and direction, but for the recurrent matrices."""
    cell, directions = layer.cell, 2 if layer.bidirectional else 1
    width = layer.input_size if index < directions else directions * layer.state_sizes[0]
    start = cell.start(width, layer.hidden_size, layer.biased, generator)
    if layer.input_range is not None:
        for name in start:
            if name.startswith("weight_ih"):
                start[name].uniform_(-layer.input_range, layer.input_range, generator=generator)
    if layer.initial_state == "learned":
        start |= {f"{n}0": torch.zeros(size) for n, size in zip(cell.states, layer.state_sizes, strict=True)}
    return start


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
        if not parametrize.is_parametrized(layer, name):
            layer.free_maps[matrix.name] = matrix_map
        return
    with torch.no_grad():
        getattr(layer, name).copy_(_free_matrix(layer, matrix, generator))


def _free_matrix(layer: Recurrent, matrix: Matrix, generator: torch.Generator | None) -> torch.Tensor:
    """A starting value without constraint, block by block. Options of a map that is not free do not hold for it."""
    free = layer.free_maps.get(matrix.name) or maps.make("free", matrix.size, **layer.free_options)
    return torch.cat([free(*free.start(generator)) for _ in range(matrix.blocks)])
