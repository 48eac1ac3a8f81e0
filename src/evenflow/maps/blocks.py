"""Maps of weights that are not one matrix: stacked gates, and the kernels of a convolution."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.maps.map import Map


class Blocks(Map):
    """A weight of stacked blocks of one size. Each chosen block is a matrix of the map; the others are free.

    Shapes:
        raw: the rows of the free blocks (left out if there are none), then the numbers of the map, one set for each
        chosen block; matrix ``(..., count · rows, columns)``.

    Args:
        map: the map of one block.
        count: number of blocks.
        chosen: indices of the blocks that the map computes.
    """

    _checked = True  # numbers of free blocks may be orthogonal

    def __init__(self, map: Map, count: int, chosen: tuple[int, ...]) -> None:
        super().__init__(count * map.rows, map.columns)
        if map.moves_every is not None:
            raise ValueError(f"map must not be {type(map).__name__} for blocks: its base is that of one matrix")
        self.map, self.count, self.chosen = map, count, tuple(chosen)

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.count) if i not in self.chosen)

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        free = ((len(self.others) * self.map.rows, self.columns),) if self.others else ()
        return free + tuple((len(self.chosen), *shape) for shape in self.map.raw_shapes)

    @property
    def rates(self) -> tuple[float, ...]:
        return (1.0,) * bool(self.others) + self.map.rates

    @property
    def stiefel(self) -> tuple[bool, ...]:
        return (False,) * bool(self.others) + self.map.stiefel

    def prepare_capture(self, *raw: Tensor) -> None:
        self.map.prepare_capture(*raw[bool(self.others) :])

    def needs_recapture(self, *raw: Tensor) -> bool:
        return self.map.needs_recapture(*raw[bool(self.others) :])

    def matrix(self, *raw: Tensor) -> Tensor:
        blocks = dict(zip(self.chosen, self.map(*raw[bool(self.others) :]).unbind(-3), strict=True))
        if self.others:
            blocks.update(zip(self.others, raw[0].split(self.map.rows, -2), strict=True))
        return torch.cat([blocks[i] for i in range(self.count)], -2)

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        blocks = matrix.split(self.map.rows, -2)
        made = self.map.inverse(torch.stack([blocks[i] for i in self.chosen], -3))
        free = (torch.cat([blocks[i] for i in self.others], -2),) if self.others else ()
        return free + tuple(made)

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        drawn = [self.map.start(generator) for _ in self.chosen]
        made = tuple(torch.stack(each) for each in zip(*drawn, strict=True))
        free = (torch.zeros(len(self.others) * self.map.rows, self.columns),) if self.others else ()
        return free + made

    def project(self, *raw: Tensor) -> None:
        self.map.project(*raw[1 if self.others else 0 :])

    def start_beside(self, weight: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        """Return the initial numbers, with the free blocks of `weight`."""
        first = self.start(generator)
        if not self.others:
            return first
        blocks = weight.detach().split(self.map.rows, -2)
        return (torch.cat([blocks[i] for i in self.others], -2), *first[1:])


class Flattened(Map):
    """A weight of more than two dimensions, such as ``(out, in, height, width)`` of a convolution, as one matrix.

    Shapes:
        raw as in the map; weight ``(out, ...)``, matrix ``(out, product of the rest)``.

    Args:
        map: the map of the matrix.
        shape: that of the weight.
    """

    def __init__(self, map: Map, shape: tuple[int, ...]) -> None:
        super().__init__(map.rows, map.columns)
        self.map, self.shape = map, tuple(shape)

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return self.map.raw_shapes

    @property
    def rates(self) -> tuple[float, ...]:
        return self.map.rates

    @property
    def stiefel(self) -> tuple[bool, ...]:
        return self.map.stiefel

    @property
    def moves_every(self) -> int | None:
        return self.map.moves_every

    def move(self, *raw: Tensor) -> None:
        self.map.move(*raw)

    def project(self, *raw: Tensor) -> None:
        self.map.project(*raw)

    def forward(self, *raw: Tensor) -> Tensor:
        return self.map(*raw).reshape(self.shape)

    def right_inverse(self, matrix: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.map.right_inverse(matrix.flatten(1))

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        return self.map.start(generator)
