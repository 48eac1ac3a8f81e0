"""A tile: how a cluster of blocks shares one product of a step among its threads, and what it takes of a GPU.

A kernel is compiled for a tile; `tile.cuh` is the other side of this file, and the two must compute the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

ALL = 10**6  # `Tile.held`: all weights


class ProductShape(NamedTuple):
    """One product of a step, or several sums over units.

    Attributes:
        out, into: numbers per unit that come out of the product, and that go into it; 0 go into sums, which have no
            weights.
    """

    out: int
    into: int

    @property
    def weighted(self) -> bool:
        return self.into > 0


@dataclass(frozen=True)
class Tile:
    """The numbers a kernel is compiled for.

    Args:
        blocks: blocks of a cluster, which share the units, and with them the rows of the recurrent matrix.
        lanes, units: threads of a group, and the units that the group computes.
        rows: rows of the batch that run side by side.
        held: columns of four weights that a thread keeps in registers; the others lie in shared memory.
        async_store: blocks of a cluster send states by stores that are counted where they arrive, instead of waiting
            at a barrier; see `exchange.cuh`.
        blocks_per_sm: blocks that one multiprocessor runs at the same time.
        tensor_cores: the product runs on tensor cores, with rows in multiples of 8 and lanes in whole warps; `held`
            then counts fragments of four weights. See `tensor_core_product.cuh`.
        scatter: on tensor cores and with `async_store`, blocks send sums instead of states; see `scatter_product.cuh`.
        prefetch_slots: on tensor cores, weights that are not held are read from device memory at every step, through a
            prefetch ring of this many slots in shared memory; 0 keeps them in shared memory.
        ahead: steps between the start of a copy from device memory and its use: 1 or 3.
    """

    blocks: int
    lanes: int
    units: int
    rows: int
    held: int = ALL
    async_store: bool = False
    blocks_per_sm: int = 1
    tensor_cores: bool = False
    scatter: bool = False
    prefetch_slots: int = 0
    ahead: int = 3

    def owned(self, hidden: int) -> int:
        """Units of a block, rounded up to whole warps."""
        groups = ceil_div(ceil_div(hidden, self.blocks), self.units)
        groups_of_a_warp = max(1, 32 // self.lanes)
        return ceil_div(groups, groups_of_a_warp) * groups_of_a_warp * self.units

    def threads(self, hidden: int) -> int:
        """Threads of a block."""
        return self.owned(hidden) // self.units * self.lanes

    @property
    def items(self) -> int:
        """Units of one row that a thread updates: the item is one unit of one row."""
        return max(1, self.rows * self.units // self.lanes)

    def weights(self, hidden: int, shape: ProductShape) -> int:
        """Weights of a thread, in registers or not."""
        if self.scatter:
            return self.blocks * self.owned(hidden) ** 2 * shape.into // self.threads(hidden)
        per_read = self.units * shape.out // 2 if self.tensor_cores else 4 * self.units * shape.out
        return per_read * shape.into * ceil_div(hidden, self._inputs_per_read)

    def piece(self, shape: ProductShape) -> int:
        """Weights that are held, or not held, together: what `held` counts."""
        return 4 if self.tensor_cores else 4 * self.units * shape.out

    def in_registers(self, hidden: int, shape: ProductShape) -> int:
        """Weights that a thread keeps in registers."""
        return min(self.weights(hidden, shape), self.held * self.piece(shape))

    def global_weights(self, hidden: int, shape: ProductShape) -> int:
        """Weights in device memory, of all blocks of a cluster."""
        streamed = self.weights(hidden, shape) - self.in_registers(hidden, shape)
        return self.blocks * self.threads(hidden) * streamed if self.prefetch_slots else 0

    def sums(self, shape: ProductShape) -> int:
        """Sums that a thread accumulates at the same time."""
        if not shape.weighted:
            return shape.out
        values = self.rows * self.units * shape.out
        return values * self.blocks // self.lanes * 2 if self.scatter else values // (16 if self.tensor_cores else 1)

    def memory(self, hidden: int, shape: ProductShape, streams: int) -> int:
        """Bytes of shared memory of a block.

        Args:
            streams: numbers per unit and step that are copied from device memory ahead of their use.
        """
        threads, owned = self.threads(hidden), self.owned(hidden)
        copied = (self.ahead + 1) * streams * self.items * threads
        if not shape.weighted:
            parts = self.blocks * (threads // max(32, self.lanes))
            return 4 * (2 * self.rows * shape.out * ceil_div(parts, 4) * 4 + copied + 4)
        row = max(ceil_div(hidden, self._inputs_per_read) * self._inputs_per_read, self.blocks * owned)
        row = shape.into * (owned if self.scatter else row)
        rest = self.weights(hidden, shape) - self.in_registers(hidden, shape)
        numbers = (4 * self.prefetch_slots or rest) * threads
        if self.scatter:
            numbers += 2 * self.blocks * owned * self.rows  # the sums that the other blocks send, twice
        elif self.tensor_cores:
            numbers += threads // 32 * self.rows * (self.units * shape.out + 4)  # the sums of each warp
        scales = 0
        if self.tensor_cores:
            scales, row = self.rows * row // 16, ceil_div(row + 16, 32) * 32 - 16
        return 4 * (numbers + 2 * (self.rows * row + scales) + copied + 4)

    @property
    def _inputs_per_read(self) -> int:
        """Inputs that a group reads at a time."""
        return self.lanes // 2 if self.tensor_cores else 4 * self.lanes


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
