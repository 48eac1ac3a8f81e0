"""``Σ_n left_n' right_n`` on tensor cores, for weight gradients: sums over all steps and rows; see `gemm.cuh`."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evenflow.runtime import compile_c as native
from evenflow.runtime import compile_cuda as build
from evenflow.runtime import cuda_libraries as libraries
from evenflow.scan.cuda.gemm_tiles import BLOCK_BYTES, PROCESSORS, Patch, choose

OLDEST = (8, 0)  # the first compute capability whose tensor cores take TF32, and that copies by itself
# Multiply-adds below which cuBLAS is asked: on an H200 either then takes about as long as two launches.
LEAST_WORK = 2**27
MOST_ROWS, MOST_STRIDE = 2**31 - 2**16, 2**24  # numbers of 32 bits count rows, and the numbers of a piece

Job = native.structure(
    "Gradient",
    int64="rows each shift tiles across left_size left_row left_model right_size right_row right_model"
    " first_row first_model models pitch",
    pointer="left right first left_most right_most out",
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
        agree = f'static_assert({patch}::THREADS == {p.threads} && {patch}::BYTES == {p.memory}, "gemm.py");'
        return f"{agree}\nENTRY_TOGETHER({name}, {p.threads}, {p.together}, Gradient, gradient<{patch}>)\n"

    def text(self, machine: str = "primitives.cuh") -> str:
        """The whole source, the same for every GPU."""
        return "".join(build.read(file) for file in (machine, "fp16_split.cuh", "gemm.cuh")) + self.entry("run")


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
    """The largest absolute number of each output of each model."""
    found = [torch.linalg.vector_norm(x, math.inf, 1) for x in parts if x is not None and x.numel()]
    return (found[0] if len(found) == 1 else torch.stack(found).amax(0)).contiguous()


def _by_4(x: Tensor) -> bool:
    return x.data_ptr() % 16 == 0 and x.stride(0) % 4 == 0 and x.stride(1) % 4 == 0
