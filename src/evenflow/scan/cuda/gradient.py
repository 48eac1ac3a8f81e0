"""``Σ_n left_n' right_n`` on tensor cores, for weight gradients: sums over all steps and rows; see `gradient.cuh`.

A result is cut into patches, one for each block, and the rows into parts, so that all blocks together fill the GPU.
What a choice costs is counted in cycles of a multiprocessor, and the cheapest is taken.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evenflow.scan import native
from evenflow.scan.cuda import build, libraries

OLDEST = (8, 0)  # the first compute capability whose tensor cores take TF32, and that copies by itself
PROCESSORS, BLOCK_BYTES = 132, 227 * 1024  # of an H200: multiprocessors, and shared memory of a block
# Multiply-adds below which cuBLAS is asked: on an H200 either then takes about as long as two launches.
LEAST_WORK = 2**27
LEAST_ROWS, TURNS = 128, 4  # rows of a part, and times that a GPU is filled to spare the last turn
# Cycles a block takes to begin and to store, and those of a launch more, to add up the parts.
BEGIN_CYCLES, LAUNCH_CYCLES = 5000, 5000
READ_BYTES = 2200  # per cycle, of device memory: to find the largest number of each side
SUM_BYTES = 1500  # per cycle, of all multiprocessors: parts are written and read once, mostly in the L2 cache
MOST_ROWS, MOST_STRIDE = 2**31 - 2**16, 2**24  # numbers of 32 bits count rows, and the numbers of a piece

Job = native.structure(
    "Gradient",
    int64="rows each shift tiles across left_size left_row left_model right_size right_row right_model"
    " first_row first_model models pitch",
    pointer="left right first left_most right_most out",
)


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
    Patch(128, 128, 2, 4, 78),
    Patch(128, 64, 4, 2, 42, together=2),
    Patch(64, 64, 2, 2, 26, together=3, stages=3),
    Patch(128, 16, 8, 1, 36, together=2),
    Patch(128, 128, 2, 4, 42, halves=True),
)


@dataclass(frozen=True)
class Kernel:
    """The kernel for one patch; a side whose rows begin at multiples of 16 bytes is copied four numbers at a time."""

    patch: Patch
    left_by_4: bool = True
    right_by_4: bool = True
    function = "gradient"
    cluster = 1

    @property
    def threads(self) -> int:
        return self.patch.threads

    @property
    def memory(self) -> int:
        return self.patch.memory

    def blocks(self, batch: int) -> int:
        return batch

    def entry(self, name: str) -> str:
        """The line that makes a kernel of the function."""
        p = self.patch
        numbers = (p.tall, p.wide, p.down, p.across, p.rows, p.stages, p.chain)
        kinds = (str(kind).lower() for kind in (p.halves, self.left_by_4, self.right_by_4))
        patch = f"Patch<{', '.join((*map(str, numbers), *kinds))}>"
        agree = f'static_assert({patch}::THREADS == {p.threads} && {patch}::BYTES == {p.memory}, "gradient.py");'
        return f"{agree}\nENTRY_TOGETHER({name}, {p.threads}, {p.together}, Gradient, gradient<{patch}>)\n"

    def text(self, machine: str = "machine.cuh") -> str:
        """The whole source, the same for every GPU."""
        return "".join(build.read(file) for file in (machine, "halves.cuh", "gradient.cuh")) + self.entry("run")


def runs(left: Tensor, right: Tensor, rows: int) -> bool:
    """Whether the kernel takes this product, and is worth it: ``(M, ..., L)`` and ``(M, ..., R)`` over `rows` rows."""
    return (
        left.is_cuda
        and left.dtype == right.dtype == torch.float32
        and len(left) * rows * left.shape[-1] * right.shape[-1] >= LEAST_WORK
        and rows <= MOST_ROWS
        and _machine(left.device) is not None
    )


@functools.cache
def _machine(device: torch.device) -> tuple[int, int] | None:
    """Multiprocessors of a GPU, and bytes of shared memory that a block may have; None where the kernel cannot run."""
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < OLDEST:
        return None
    if build.missing(device.index) is not None:
        return None
    return torch.cuda.get_device_properties(device).multi_processor_count, libraries.block_bytes(device.index)


def product(
    left: Tensor, right: Tensor, first: Tensor | None = None, *, patch: Patch | None = None, parts: int | None = None
) -> Tensor:
    """``Σ_n left_n' right_n`` for each model; with `first`, of B rows, right_n is row n - B of `right`, after `first`.

    Shapes:
        left: ``(M, N, L)``; right: ``(M, N, R)``; first: ``(M, B, R)``; result ``(M, L, R)``.

    Args:
        patch, parts: instead of the cheapest.
    """
    models, rows, left_size = left.shape
    right_size = right.shape[-1]
    if left.numel() == 0 or right_size == 0:
        return left.new_zeros(models, left_size, right_size)
    left, right = _readable(left), _readable(right)
    first = None if first is None else _readable(first)
    machine = (_machine(left.device) if left.is_cuda else None) or (PROCESSORS, BLOCK_BYTES)
    patch, each = choose(models, rows, left_size, right_size, *machine, patch, parts)
    parts, (down, across) = -(-rows // each), patch.tiles(left_size, right_size)
    pitch = -(-right_size // 4) * 4
    out = left.new_empty(parts, models, left_size, pitch)
    shift = 0 if first is None else first.shape[1]
    most = (_most(left), _most(right[:, : max(0, rows - shift)], first)) if patch.halves else (None, None)
    job = Job(
        rows=rows,
        each=each,
        shift=shift,
        tiles=down * across,
        across=across,
        left_size=left_size,
        left_row=left.stride(1),
        left_model=left.stride(0),
        right_size=right_size,
        right_row=right.stride(1),
        right_model=right.stride(0),
        first_row=0 if first is None else first.stride(1),
        first_model=0 if first is None else first.stride(0),
        models=models,
        pitch=pitch,
        left=left.data_ptr(),
        right=right.data_ptr(),
        first=None if first is None else first.data_ptr(),
        left_most=None if most[0] is None else most[0].data_ptr(),
        right_most=None if most[1] is None else most[1].data_ptr(),
        out=out.data_ptr(),
    )
    kernel = Kernel(patch, _by_4(left), _by_4(right) and (first is None or _by_4(first)))
    build.launch(kernel, job, left, models, down * across * parts)
    out = out[..., :right_size]
    return out[0].contiguous() if parts == 1 else out.sum(0)


def _readable(x: Tensor) -> Tensor:
    """The same numbers, those of a row side by side and rows no further apart than the kernel can count."""
    return x if x.stride(-1) == 1 and x.stride(1) <= MOST_STRIDE else x.contiguous()


def _most(*parts: Tensor | None) -> Tensor:
    """The largest absolute number of each model."""
    found = [torch.linalg.vector_norm(x, math.inf, (1, 2)) for x in parts if x is not None and x.numel()]
    return found[0] if len(found) == 1 else torch.stack(found).amax(0)


def _by_4(x: Tensor) -> bool:
    return x.data_ptr() % 16 == 0 and x.stride(0) % 4 == 0 and x.stride(1) % 4 == 0


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
