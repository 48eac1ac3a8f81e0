"""The two kernels of this folder, the recurrence and the matrix product, and their sources.

A source is `primitives.cuh`, other files of this folder, and one line that makes a kernel of a function, for the
template arguments of a tile.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from evenflow.scan.cuda.gemm_tiles import GemmTile
from evenflow.scan.cuda.launch_plan import StepTile
from evenflow.scan.cuda.tile import ProductShape, ceil_div

PRIMITIVES = "primitives.cuh"
RECURRENCE_FILES = (
    "tile.cuh",
    "fp16_split.cuh",
    "exchange.cuh",
    "fragments.cuh",
    "tensor_core_product.cuh",
    "scatter_product.cuh",
    "functions.cuh",
)  # in the order in which they need each other
GEMM_FILES = ("fp16_split.cuh", "gemm.cuh")


@functools.cache
def read_sources(*files: str) -> str:
    """The text of some files of this folder."""
    return "".join((Path(__file__).parent / file).read_text(encoding="utf-8") + "\n" for file in files)


@dataclass(frozen=True)
class RecurrenceKernel:
    """One pass of a step over all time steps, for one number of units and one tile.

    Args:
        function: ``"forward"`` or ``"backward"``.
        body: the job and the function of the pass, as `CudaDirection.text` gives them.
        hidden: units of the widest block.
        step_tile, shapes: the tile, and the products it runs.
        streams: numbers per unit and step that are copied from device memory ahead of their use.
    """

    function: str
    body: str
    hidden: int
    step_tile: StepTile
    shapes: tuple[ProductShape, ...]
    streams: int

    @functools.cached_property
    def threads(self) -> int:
        return self.step_tile.tile.threads(self.hidden)

    @functools.cached_property
    def memory(self) -> int:
        return self.step_tile.memory(self.hidden, self.shapes, self.streams)

    @property
    def cluster(self) -> int:
        return self.step_tile.tile.blocks

    def global_weights(self, like: Tensor, models: int) -> Tensor | None:
        """Room in device memory for the weights of a tile with a prefetch ring; None for others."""
        numbers = self.step_tile.tiles()[0].global_weights(self.hidden, self.shapes[0])
        return like.new_empty(models * numbers) if numbers else None

    def blocks(self, batch: int) -> int:
        return ceil_div(batch, self.step_tile.tile.rows) * self.cluster

    def entry(self, name: str) -> str:
        """The function in a scope of its own, and the line that makes a kernel of it."""
        scope, tiles = f"scope_{name}", []
        for n, (t, (out, into)) in enumerate(zip(self.step_tile.tiles(), self.shapes, strict=True)):
            numbers = (self.hidden, t.blocks, t.lanes, t.units, t.rows, t.held, out, into, 0 if n else self.streams)
            kinds = (t.async_store, t.tensor_cores, t.scatter, t.prefetch_slots, t.ahead)
            arguments = ", ".join(str(v).lower() for v in (*numbers, *kinds))
            tiles.append(f"typedef Tile<{arguments}> T{n};")
        total = " + ".join(f"T{n}::BYTES" for n in range(len(tiles)))
        check = f'static_assert(T0::THREADS == {self.threads} && {total} == {self.memory}, "as in tile.py");'
        lines = [f"namespace {scope} {{", *tiles, check, self.body, "}"]
        entry = f"ENTRY({name}, {self.threads}, {self.cluster}, {scope}::Job, {scope}::run)"
        return "\n".join([*lines, entry, ""])

    def source(self) -> str:
        return read_sources(PRIMITIVES, *RECURRENCE_FILES) + self.entry("run")


@dataclass(frozen=True)
class GemmKernel:
    """The product of `gemm.cuh` for one tile.

    Args:
        tile: the tile.
        left_by_4, right_by_4: copy the rows of that side four numbers at a time, for rows aligned to 16 bytes.
    """

    tile: GemmTile
    left_by_4: bool = True
    right_by_4: bool = True
    function = "gemm"
    cluster = 1

    @property
    def threads(self) -> int:
        return self.tile.threads

    @property
    def memory(self) -> int:
        return self.tile.memory

    def blocks(self, batch: int) -> int:
        return batch

    def entry(self, name: str) -> str:
        """The line that makes a kernel of the function."""
        t = self.tile
        numbers = (t.block_m, t.block_n, t.warps_m, t.warps_n, t.block_k, t.stages, t.chain)
        kinds = (str(kind).lower() for kind in (t.fp16, self.left_by_4, self.right_by_4))
        tile = f"GemmTile<{', '.join((*map(str, numbers), *kinds))}>"
        check = f'static_assert({tile}::THREADS == {t.threads} && {tile}::BYTES == {t.memory}, "as in gemm_tiles.py");'
        return f"{check}\nENTRY_BLOCKS_PER_SM({name}, {t.threads}, {t.blocks_per_sm}, GemmJob, gemm<{tile}>)\n"

    def source(self) -> str:
        return read_sources(PRIMITIVES, *GEMM_FILES) + self.entry("run")
