"""Which patches of a weight gradient a block computes: what each choice costs, in cycles of a multiprocessor.

A result is cut into patches, one for each block, and the rows into parts, so that all blocks together fill the GPU. The
cheapest choice is taken; `gemm.cuh` says what a patch is.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

PROCESSORS, BLOCK_BYTES = 132, 227 * 1024  # of an H200: multiprocessors, and shared memory of a block
LEAST_ROWS, TURNS = 128, 4  # rows of a part, and times that a GPU is filled to spare the last turn
# Cycles a block takes to begin and to store, and those of a launch more, to add up the parts.
BEGIN_CYCLES, LAUNCH_CYCLES = 5000, 5000
READ_BYTES = 2200  # per cycle, of device memory: to find the largest number of each side
SUM_BYTES = 1500  # per cycle, of all multiprocessors: parts are written and read once, mostly in the L2 cache


@dataclass(frozen=True)
class Patch:
    """The part of a result that one block computes.

    Args:
        tall, wide: numbers of the left and of the right side.
        down, across: warps that share these.
        cycles: of a multiprocessor for one row of a block, when `together` blocks run on it at once.
        rows, stages: rows in shared memory at a time, and such pieces in the ring.
        chain: rows that the hardware adds up, cutting off as it goes, before they are rounded and added outside.
        halves: numbers are split into halves, half the products, which wants the largest of each side.
    """

    tall: int
    wide: int
    down: int
    across: int
    cycles: float
    together: int = 1
    rows: int = 32
    stages: int = 4
    chain: int = 16
    halves: bool = False

    @property
    def threads(self) -> int:
        return 32 * self.down * self.across

    @property
    def memory(self) -> int:
        """Bytes of shared memory of a block."""
        row = sum(size if size % 16 else size + 8 for size in (self.tall, self.wide))
        return 4 * self.stages * self.rows * row

    def tiles(self, left: int, right: int) -> tuple[int, int]:
        """Patches below and beside each other."""
        return -(-left // self.tall), -(-right // self.wide)


# Cycles by count: 6.5 for a product of 16 x 8 x 8 on one of four tensor cores, three of these each, and for smaller
# patches what they read more often: 20 bytes of the L2 cache a cycle, 16 of device memory.
PATCHES = (
    Patch(128, 128, 2, 4, 78, stages=3),
    Patch(128, 64, 4, 2, 42, together=2),
    Patch(64, 64, 2, 2, 26, together=3, stages=3),
    Patch(128, 16, 8, 1, 36, together=2),
    Patch(128, 128, 2, 4, 42, stages=3, halves=True),
)


@functools.lru_cache(4096)  # rows may differ with every batch
def choose(
    models: int,
    rows: int,
    left: int,
    right: int,
    processors: int = PROCESSORS,
    block_bytes: int = BLOCK_BYTES,
    patch: Patch | None = None,
    parts: int | None = None,
) -> tuple[Patch, int]:
    """The cheapest patch, and how many rows a part has."""
    _, found, each = min(
        (
            (cycles(p, n, models, rows, left, right, processors), p, _each(p, rows, n))
            for p in ((patch,) if patch else (each for each in PATCHES if each.memory <= block_bytes))
            for n in ((parts,) if parts else _numbers_of_parts(p, models, rows, left, right, processors))
        ),
        key=lambda each: each[0],
    )
    return found, each


def cycles(patch: Patch, parts: int, models: int, rows: int, left: int, right: int, processors: int) -> float:
    """What a product costs, in cycles of the whole GPU."""
    each = _each(patch, rows, parts)
    parts = -(-rows // each)
    blocks = parts * models * math.prod(patch.tiles(left, right))
    full, rest = divmod(blocks, processors * patch.together)
    last = min(patch.together, -(-rest // processors))  # fewer blocks on a multiprocessor share it with fewer
    work = (full * patch.together + last) * each * patch.cycles + (full + (rest > 0)) * BEGIN_CYCLES
    adds_up = LAUNCH_CYCLES + 8 * parts * models * left * right / SUM_BYTES
    looks = 2 * LAUNCH_CYCLES + 4 * models * rows * (left + right) / READ_BYTES
    return work + (adds_up if parts > 1 else 0) + (looks if patch.halves else 0)


def _each(patch: Patch, rows: int, parts: int) -> int:
    """Rows of a part, in whole pieces."""
    return -(-rows // (parts * patch.rows)) * patch.rows


def _numbers_of_parts(patch: Patch, models: int, rows: int, left: int, right: int, processors: int) -> set[int]:
    """Those with which blocks fill a GPU once, twice and up to `TURNS` times, and no part is short."""
    tiles, most = models * math.prod(patch.tiles(left, right)), max(1, rows // LEAST_ROWS)
    turns = range(1, TURNS * patch.together + 1)
    return {min(most, max(1, turn * processors // tiles)) for turn in turns}
