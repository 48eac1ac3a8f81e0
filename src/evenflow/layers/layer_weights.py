"""The weights of a recurrent layer: their names, shapes and starting values, and the maps on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from evenflow import maps
from evenflow.cells import Cell, Matrix, Weights
from evenflow.maps.blocks import Blocks
from evenflow.runtime.picklable import Picklable

OneMap = str | Callable[[int], maps.Map]
MapChoice = OneMap | Mapping[str, OneMap]  # one for all matrices that take one, or one for each by its name


class LayerWeights(Picklable):
    """What a recurrent layer owns; `Recurrent` is what it does with it."""

    cell: Cell
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    bidirectional: bool
    initial_state: str
    _names: tuple[str, ...] = ()
    _shapes: Mapping[str, torch.Size] = {}  # layers saved whole before there was this have none

    @property
    def suffixes(self) -> list[str]:
        """The endings of the weights' names, ``_l0``, ``_l0_reverse``, ..., one for each layer and direction."""
        directions = ("", "_reverse") if self.bidirectional else ("",)
        return [f"_l{layer}{direction}" for layer in range(self.num_layers) for direction in directions]

    def direction_weights(self, index: int) -> dict[str, Tensor]:
        """The weights of one layer and direction by their names in the cell; a map computes its matrix.

        Args:
            index: which layer and direction, in the order of the final states.
        """
        return {name: self._weight(name + self.suffixes[index]) for name in self._names}

    def step_weights(self, index: int) -> Weights:
        """The tensors that the cell's step reads: `direction_weights` as `Cell.prepare` returns them."""
        return self.cell.prepare(self.direction_weights(index))

    def _start_weights(
        self,
        map: MapChoice,
        map_options: dict[str, Any],
        input_range: float | None,
        generator: torch.Generator | None,
    ) -> None:
        """All weights, with their starting values."""
        self._shapes = {}
        with torch.device("cpu"):  # starting values are drawn there, whatever the default device
            for index, suffix in enumerate(self.suffixes):
                self._start_one(index, suffix, map, map_options, input_range, generator)

    def _start_one(
        self,
        index: int,
        suffix: str,
        map: MapChoice,
        map_options: dict[str, Any],
        input_range: float | None,
        generator: torch.Generator | None,
    ) -> None:
        """The weights of one layer and direction, with their starting values."""
        cell, hidden_size, directions = self.cell, self.hidden_size, 2 if self.bidirectional else 1
        width = self.input_size if index < directions else directions * hidden_size
        start = cell.start(width, hidden_size, self.bias, generator)
        if input_range is not None:
            for name in start:
                if name.startswith("weight_ih"):
                    start[name].uniform_(-input_range, input_range, generator=generator)
        if self.initial_state == "learned":
            start |= {f"{name}0": torch.zeros(hidden_size) for name in cell.states}
        matrices = cell.matrices(hidden_size)
        start |= {m.name: torch.empty(m.blocks * m.size, m.size) for m in matrices}
        self._names = tuple(start)
        self._shapes = {**self._shapes, **{name + suffix: tensor.shape for name, tensor in start.items()}}
        for name, tensor in start.items():
            self.register_parameter(name + suffix, nn.Parameter(tensor))
        for matrix in matrices:
            self._attach(matrix, suffix, map, map_options, generator)

    def _attach(
        self,
        matrix: Matrix,
        suffix: str,
        map: MapChoice,
        map_options: dict[str, Any],
        generator: torch.Generator | None,
    ) -> None:
        """Start a recurrent matrix and, where the cell has it so, put the map on it."""
        name = matrix.name + suffix
        choice = map if not isinstance(map, Mapping) else map.get(matrix.name, "free")
        if matrix.mapped or (isinstance(map, Mapping) and matrix.name in map):
            made = maps.make(choice, matrix.size, **map_options)
            if matrix.blocks > 1:
                made = Blocks(made, matrix.blocks, tuple(range(matrix.blocks)))
            maps.attach(self, name, made, generator=generator)
            if getattr(self, name).is_complex() and not self.cell.takes_complex:
                raise ValueError(f"map {map!r} makes complex matrices, which the {self.cell.name} cell has not")
            return
        # A free map's options (where to start) hold for the free matrices too; another map's are none of theirs.
        free = maps.make("free", matrix.size, **(map_options if map == "free" else {}))
        with torch.no_grad():
            getattr(self, name).copy_(torch.cat([free(*free.start(generator)) for _ in range(matrix.blocks)]))

    def _weight(self, name: str) -> Tensor:
        """A weight by its name; one that was replaced by another of a wrong shape is refused before it is read."""
        weight: Tensor = getattr(self, name)
        wanted = self._shapes.get(name)
        if weight.shape != wanted and wanted is not None:
            raise ValueError(f"{name} must have shape {tuple(wanted)}, got {tuple(weight.shape)}")
        return weight
