"""Which tiles of a weight gradient a block computes: what each choice costs, in cycles of a multiprocessor.

The result of `gemm.product` is cut into tiles, one for each block, and the rows into parts, so that all blocks together
fill the GPU. The cheapest choice is used; `gemm.cuh` says how a block computes a tile.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from evenflow.scan.cuda.gpu_capacity import H200
from evenflow.scan.cuda.tile import ceil_div

BLOCK_BYTES = 227 * 1024  # shared memory of a block of an H200
LEAST_ROWS, WAVES = 128, 4  # rows of a part, and how often a GPU is filled so that the last wave costs little
# Cycles a block takes to begin and to store, and those of a launch more, to add up the parts.
BEGIN_CYCLES, LAUNCH_CYCLES = 5000, 5000
READ_BYTES = 2200  # per cycle, of device memory: to find the largest number of each side
SUM_BYTES = 1500  # per cycle, of all multiprocessors: parts are written and read once, mostly in the L2 cache


@dataclass(frozen=True)
class GemmTile:
    """The part of a result that one block computes.

    Args:
        block_m, block_n: outputs of the left and of the right side.
        warps_m, warps_n: warps that share these.
        cycles: cycles of a multiprocessor for one row, when `blocks_per_sm` blocks run on it at the same time.
        block_k: rows in shared memory at a time, a stage.
        stages: stages of the prefetch ring.
        chain: rows that the hardware adds up, with truncation, before their sum is rounded and added outside.
        fp16: numbers are split into two halves, which takes half the products and the largest number of each side.
    """

    block_m: int
    block_n: int
    warps_m: int
    warps_n: int
    cycles: float
    blocks_per_sm: int = 1
    block_k: int = 32
    stages: int = 4
    chain: int = 16
    fp16: bool = False

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def memory(self) -> int:
        """Bytes of shared memory of a block."""
        row = sum(size if size % 16 else size + 8 for size in (self.block_m, self.block_n))
        return 4 * self.stages * self.block_k * row

    def count(self, left: int, right: int) -> int:
        """Tiles of a result of ``left * right`` numbers."""
        return ceil_div(left, self.block_m) * ceil_div(right, self.block_n)

    def part_rows(self, rows: int, parts: int) -> int:
        """Rows of a part, in whole stages."""
        return ceil_div(rows, parts * self.block_k) * self.block_k


# Cycles by count: 6.5 for a product of 16 x 8 x 8 on one of four tensor cores, three of these each, and for smaller
# tiles what they read more often: 20 bytes of the L2 cache a cycle, 16 of device memory.
GEMM_TILES = (
    GemmTile(128, 128, 2, 4, 78, stages=3),
    GemmTile(128, 64, 4, 2, 42, blocks_per_sm=2),
    GemmTile(64, 64, 2, 2, 26, blocks_per_sm=3, stages=3),
    GemmTile(128, 16, 8, 1, 36, blocks_per_sm=2),
    GemmTile(128, 128, 2, 4, 42, stages=3, fp16=True),
)


@functools.lru_cache(4096)  # rows may differ with every batch
def choose_gemm_tile(
    models: int,
    rows: int,
    left: int,
    right: int,
    processors: int = H200.multiprocessors,
    block_bytes: int = BLOCK_BYTES,
    tile: GemmTile | None = None,
    parts: int | None = None,
) -> tuple[GemmTile, int]:
    """The cheapest tile, and how many rows a part has."""
    size = models, rows, left, right
    tiles = [tile] if tile else [each for each in GEMM_TILES if each.memory <= block_bytes]
    choices = ((t, n) for t in tiles for n in ([parts] if parts else _numbers_of_parts(t, *size, processors)))
    best, count = min(choices, key=lambda choice: cycles(choice[0], choice[1], *size, processors))
    return best, best.part_rows(rows, count)


def cycles(tile: GemmTile, parts: int, models: int, rows: int, left: int, right: int, processors: int) -> float:
    """What a product costs, in cycles of the whole GPU."""
    each = tile.part_rows(rows, parts)
    parts = ceil_div(rows, each)
    blocks = parts * models * tile.count(left, right)
    full, rest = divmod(blocks, processors * tile.blocks_per_sm)
    last = min(tile.blocks_per_sm, ceil_div(rest, processors))  # fewer blocks on a multiprocessor are faster each
    work = (full * tile.blocks_per_sm + last) * each * tile.cycles + (full + (rest > 0)) * BEGIN_CYCLES
    add_parts = LAUNCH_CYCLES + 8 * parts * models * left * right / SUM_BYTES
    find_largest = 2 * LAUNCH_CYCLES + 4 * models * rows * (left + right) / READ_BYTES
    return work + (add_parts if parts > 1 else 0) + (find_largest if tile.fp16 else 0)


def _numbers_of_parts(tile: GemmTile, models: int, rows: int, left: int, right: int, processors: int) -> set[int]:
    """Those with which blocks fill a GPU once, twice and up to `WAVES` times, and no part is short."""
    tiles, most = models * tile.count(left, right), max(1, rows // LEAST_ROWS)
    waves = range(1, WAVES * tile.blocks_per_sm + 1)
    return {min(most, max(1, wave * processors // tiles)) for wave in waves}
