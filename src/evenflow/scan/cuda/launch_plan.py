"""Which tiles run a step's products: from the tables where they were measured, else the cheapest by a cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evenflow.scan.cuda.gpu_capacity import H200, GpuCapacity
from evenflow.scan.cuda.tile import ALL, ProductShape, Tile, ceil_div
from evenflow.scan.cuda.tile_tables import (
    ELMAN,
    GATED_BACKWARD,
    GRU_FORWARD,
    LSTM_FORWARD,
    MANY_PRODUCTS,
    choose,
    covers,
    table_for,
    waves,
)

Shapes = Sequence[ProductShape]

# Of a block on every GPU: threads, registers of all threads and of one, and those that a thread needs besides weights,
# sums and what it copies ahead.
THREADS, REGISTERS, REGISTERS_OF_A_THREAD, OTHER_REGISTERS = 1024, 65536, 255, 48


@dataclass(frozen=True)
class StepTile:
    """A tile for all products of a step.

    Args:
        held: for each product, the weights in registers, counted as by `Tile.held`.
    """

    tile: Tile
    held: tuple[int, ...]

    def tiles(self) -> list[Tile]:
        """The tile of each product."""
        return [replace(self.tile, held=held) for held in self.held]

    def memory(self, hidden: int, shapes: Shapes, streams: int) -> int:
        """Bytes of shared memory of a block."""
        pairs = zip(self.tiles(), shapes, strict=True)
        return sum(t.memory(hidden, shape, 0 if n else streams) for n, (t, shape) in enumerate(pairs))


def plan_launches(
    shapes: Shapes, streams: int, hidden: int, batch: int, models: int, gpu: GpuCapacity = H200, parameters: int = 0
) -> tuple[tuple[int, StepTile], ...]:
    """Rows of the batch and the tile for them, launched one after another; empty where no tile runs this many units.

    Args:
        shapes: of the step's products.
        streams: numbers per unit and step that are copied from device memory ahead of their use.
        hidden: units of the widest block.
        parameters: numbers per unit that a thread keeps for all steps.
    """
    table = table_for(shapes[0], streams) if len(shapes) == 1 and shapes[0].weighted else None
    if table is not None and covers(table, hidden, gpu):
        planned = [
            (rows, _measured(tile, hidden, shapes, streams, gpu))
            for rows, tile in waves(table, hidden, batch, models, gpu)
        ]
        fitting = tuple((rows, tile) for rows, tile in planned if tile is not None)
        if len(fitting) == len(planned):
            return fitting
    cheapest = _cheapest(hidden, shapes, streams, batch, models, gpu, parameters)
    return () if cheapest is None else ((batch, cheapest),)


def _measured(tile: Tile, hidden: int, shapes: Shapes, streams: int, gpu: GpuCapacity) -> StepTile | None:
    """A tile of a table as it was measured, if its memory has room for the streams."""
    step_tile = StepTile(tile, (tile.held,))
    if step_tile.memory(hidden, shapes, streams) <= gpu.shared_bytes:
        return step_tile
    return None if tile.prefetch_slots else fit_registers(tile, hidden, shapes, streams, gpu)


def fit_registers(
    tile: Tile, hidden: int, shapes: Shapes, streams: int, gpu: GpuCapacity = H200, parameters: int = 0
) -> StepTile | None:
    """The tile with as many weights in registers as fit; None where shared memory has no room for the others."""
    threads = tile.threads(hidden)
    if threads > THREADS or (tile.tensor_cores and tile.lanes > 32 and threads // tile.lanes >= 16):
        return None
    limit = min(REGISTERS_OF_A_THREAD, REGISTERS // threads)
    weighted = [shape for shape in shapes if shape.weighted]
    # The sums of one product are accumulated at a time, and those of a thread's items are left. On tensor cores each
    # product reads a column of matrices ahead and has addresses of its own.
    left = [tile.items * shape.out for shape in shapes]
    accumulated = [tile.sums(shape) - n for shape, n in zip(shapes, left, strict=True) if shape.weighted]
    sums = sum(left) + max(0, *accumulated, 0)
    room = limit - OTHER_REGISTERS - (streams + parameters) * tile.items - sums
    room -= 24 * len(weighted) if tile.tensor_cores else 4 * max(0, len(weighted) - 1)
    # Where several numbers of a unit go in and come out, more matrices are in use at a time, if shared memory has room.
    crossed = tile.tensor_cores and any(shape.out > 1 and shape.into > 1 for shape in weighted)
    for spare in (32, 16, 0) if crossed else (0,):
        step_tile = StepTile(tile, _divide_registers(tile, hidden, shapes, room - spare))
        if step_tile.memory(hidden, shapes, streams) <= gpu.shared_bytes:
            return step_tile
    return None


def _divide_registers(tile: Tile, hidden: int, shapes: Shapes, room: int) -> tuple[int, ...]:
    """How many of each product's weights so many registers hold."""
    held = []
    for shape in shapes:
        if not shape.weighted:
            held.append(ALL)
            continue
        piece = tile.piece(shape)
        pieces = ceil_div(tile.weights(hidden, shape), piece)
        held.append(max(0, min(pieces, room // piece)))
        room -= held[-1] * piece
    return tuple(held)


def _cheapest(
    hidden: int, shapes: Shapes, streams: int, batch: int, models: int, gpu: GpuCapacity, parameters: int
) -> StepTile | None:
    """The cheapest of all tiles in the tables, by a count of multiplications and of the cycles of an exchange.

    A product with equally many numbers per unit on both sides is the product of a layer with so many times the units,
    and runs on a tile for those.
    """
    out, into = shapes[0]
    table = ELMAN if streams <= 2 * out else GATED_BACKWARD
    if len(shapes) == 1 and out == into > 1 and covers(table, out * hidden, gpu):
        tile = choose(table, out * hidden, batch, models, gpu)
        if tile.units % (16 * out if tile.tensor_cores else out) == 0:
            narrower = _measured(replace(tile, units=tile.units // out), hidden, shapes, streams, gpu)
            if narrower is not None:
                return narrower
    tables = (ELMAN, GRU_FORWARD, LSTM_FORWARD)
    listed = (t for table in tables for _, entry in table for t in entry if not t.prefetch_slots)
    tiles = (replace(t, held=ALL, scatter=False, blocks_per_sm=1) for t in (*listed, *MANY_PRODUCTS) if gpu.runs(t))
    best: tuple[float, StepTile] | None = None
    for tile in dict.fromkeys(tiles):
        step_tile = fit_registers(tile, hidden, shapes, streams, gpu, parameters)
        if step_tile is not None:
            rounds = ceil_div(models * ceil_div(batch, tile.rows), gpu.tiles_at_once(tile))
            cost = rounds * _cycles(step_tile, hidden, shapes)
            if best is None or cost < best[0]:
                best = cost, step_tile
    return best[1] if best else None


def _cycles(step_tile: StepTile, hidden: int, shapes: Shapes) -> float:
    """Estimated cycles of one step: multiplications of a block, reads of weights from shared memory, and exchanges."""
    tile, total = step_tile.tile, 0.0
    threads = tile.threads(hidden)
    for each, shape in zip(step_tile.tiles(), shapes, strict=True):
        weights, held = each.weights(hidden, shape), each.in_registers(hidden, shape)
        if shape.weighted:
            multiplications = weights * threads * tile.rows / (512 if tile.tensor_cores else 128)
            total += multiplications + (weights - held) * threads / 32
        total += 1200 if tile.blocks > 1 else 300
    return total
