"""The fastest tiles by the size of a layer, as measured on an H200, and the choice of one for a batch.

The tables hold what was fastest among the tiles tried at H = 64, 128, 192, 256, 384, 512, 768 and 1024;
`docs/kernels.md` has the times.
"""

from __future__ import annotations

from dataclasses import replace

from evenflow.scan.cuda.gpu_capacity import H200, GpuCapacity
from evenflow.scan.cuda.tile import ALL, ProductShape, Tile, ceil_div

# The largest H of each entry, then tiles in the order they are tried: the first that fills the GPU no more than once is
# taken, else the last. More rows in a tile mean fewer blocks, each slower.
Table = tuple[tuple[int, tuple[Tile, ...]], ...]


def _rows(tile: Tile, *rows: int) -> tuple[Tile, ...]:
    return tuple(replace(tile, rows=r) for r in rows)


def _async(*tiles: Tile) -> tuple[Tile, ...]:
    return tuple(replace(tile, async_store=True) for tile in tiles)


def _tensor(blocks: int, lanes: int, units: int, rows: int, held: int = ALL, slots: int = 0) -> Tile:
    return Tile(blocks, lanes, units, rows, held, blocks > 1, tensor_cores=True, prefetch_slots=slots)


def _scatter(blocks: int, held: int = ALL, slots: int = 0) -> Tile:
    return replace(_tensor(blocks, 128, 16, 8, held, slots), scatter=True)


ELMAN: Table = (
    (64, _rows(Tile(1, 8, 4, 1), 1, 2, 4)),
    (128, (*_rows(Tile(1, 8, 8, 1), 1, 2, 4), _tensor(1, 64, 32, 8))),
    (192, (*_async(Tile(2, 16, 8, 1)), Tile(1, 8, 8, 1), Tile(1, 16, 8, 2))),
    (256, _async(Tile(4, 16, 4, 2), Tile(2, 16, 4, 4))),
    (384, _async(Tile(8, 16, 4, 2, blocks_per_sm=2), *_rows(Tile(8, 16, 4, 4), 4, 8))),
    (512, (*_async(Tile(8, 16, 4, 4)), _tensor(4, 64, 32, 8, held=32))),
    (768, (_tensor(16, 128, 16, 8), _tensor(16, 128, 16, 16))),
    (1024, (_tensor(16, 128, 32, 8, held=32),)),
)
GATED_BACKWARD: Table = (*ELMAN[:-1], (1024, (_tensor(16, 128, 32, 8, held=36),)))  # its copies take more room
GRU_FORWARD: Table = (
    (64, _rows(Tile(1, 8, 4, 1), 1, 2, 4)),
    (128, (*_async(Tile(2, 8, 4, 1)), *_rows(Tile(1, 8, 4, 1), 1, 2))),
    (256, _async(*_rows(Tile(8, 16, 2, 4), 4, 8), Tile(8, 16, 2, 16, held=2))),
    (384, (_tensor(16, 128, 16, 8),)),
    (512, (_tensor(16, 128, 16, 8, held=28),)),
    (1024, (_tensor(16, 128, 16, 8, held=8, slots=9),)),
)
GRU_BACKWARD: Table = (
    *GRU_FORWARD[:2],
    (256, (_scatter(16), _scatter(8))),
    (512, (_scatter(16, held=24),)),
    (1024, (_scatter(16, held=5, slots=7),)),
)
LSTM_FORWARD: Table = (
    (64, _rows(Tile(1, 8, 4, 1), 1, 2, 4)),
    (96, (Tile(1, 8, 4, 1), *_async(*_rows(Tile(2, 16, 4, 1), 2, 4)))),
    (128, _async(*_rows(Tile(2, 16, 4, 1), 1, 2, 4))),
    (256, _async(Tile(8, 16, 2, 4), Tile(8, 16, 2, 8, held=3))),
    (512, (_tensor(16, 128, 16, 8, held=28),)),
    (1024, (_tensor(16, 128, 16, 8, held=8, slots=6),)),
)
LSTM_BACKWARD: Table = (
    *LSTM_FORWARD[:3],
    (256, (_scatter(16), _scatter(8))),
    (512, (_scatter(16, held=28),)),
    (1024, (_scatter(16, held=4, slots=10),)),
)
# For steps with many products, whose weights need many blocks of many threads, and whose numbers that are copied ahead
# need much memory; not measured.
MANY_PRODUCTS = _async(
    *(Tile(blocks, 32, 2, rows, ahead=ahead) for ahead in (3, 1) for blocks, rows in ((8, 4), (8, 2), (16, 4), (16, 2)))
)
TABLES = (ELMAN, GRU_FORWARD, GRU_BACKWARD, LSTM_FORWARD, LSTM_BACKWARD)


def table_for(shape: ProductShape, streams: int) -> Table | None:
    """The table for a step whose only product has this shape."""
    if (shape.out, shape.into) == (1, 1):
        return ELMAN if streams <= 2 else GATED_BACKWARD
    if shape.into == 1 and shape.out <= 4:
        return GRU_FORWARD if shape.out <= 3 else LSTM_FORWARD
    if shape.out == 1 and shape.into <= 4:
        return GRU_BACKWARD if shape.into <= 3 else LSTM_BACKWARD
    return None


def covers(table: Table, hidden: int, gpu: GpuCapacity = H200) -> bool:
    """Return True if some tile runs `hidden` units on this GPU."""
    return 1 <= hidden <= table[-1][0] and bool(_tiles(table, hidden, gpu))


def choose(table: Table, hidden: int, batch: int, models: int, gpu: GpuCapacity = H200) -> Tile:
    """The tile for `models` models of `hidden` units and `batch` rows."""
    tiles = _tiles(table, hidden, gpu)
    return next((t for t in tiles if models * ceil_div(batch, t.rows) <= gpu.tiles_at_once(t)), tiles[-1])


def waves(table: Table, hidden: int, batch: int, models: int, gpu: GpuCapacity = H200) -> tuple[tuple[int, Tile], ...]:
    """Rows of the batch and the tile for them, launched one after another.

    One wave takes all rows where some tile can run them at once. On tensor cores, where none can, the rows of the last
    wave get a launch of their own if a faster tile takes them. Elsewhere a multiprocessor may run several blocks, and
    one launch is best.
    """
    tile = choose(table, hidden, batch, models, gpu)
    full = gpu.tiles_at_once(tile) // models * tile.rows if models else 0
    rest = batch % full if full and tile.tensor_cores else 0
    last = choose(table, hidden, rest, models, gpu) if 0 < rest < batch else tile
    divided = ((batch - rest, tile), (rest, last))

    def rounds(rows: int, tile: Tile) -> int:
        return ceil_div(models * ceil_div(rows, tile.rows), gpu.tiles_at_once(tile))

    # In one launch the models share the last round, so that several models may need fewer rounds undivided.
    if last == tile or sum(rounds(*wave) for wave in divided) > rounds(batch, tile):
        return ((batch, tile),)
    return divided


def _tiles(table: Table, hidden: int, gpu: GpuCapacity) -> list[Tile]:
    entry = next(tiles for largest, tiles in table if hidden <= largest)
    return [t for t in entry if gpu.runs(t)]
