"""``Σ_n left_n' right_n`` on tensor cores, for weight gradients: sums over all steps and rows; see `gemm.cuh`."""

from __future__ import annotations

import ctypes
import functools
import math

import torch
from torch import Tensor

from evenflow.runtime import compile_cuda
from evenflow.runtime.cuda_libraries import block_bytes
from evenflow.scan.cuda.gemm_tiles import BLOCK_BYTES, GemmTile, choose_gemm_tile
from evenflow.scan.cuda.gpu_capacity import H200
from evenflow.scan.cuda.kernels import GemmKernel
from evenflow.scan.cuda.tile import ceil_div

OLDEST = (8, 0)  # the first compute capability with TF32 on tensor cores and with asynchronous copies
# Multiply-adds below which cuBLAS is asked: on an H200 either then takes about as long as two launches.
LEAST_WORK = 2**27
MOST_ROWS, MOST_STRIDE = 2**31 - 2**16, 2**24  # the kernel counts rows, and the numbers of a stage, in 32 bits


class GemmJob(ctypes.Structure):
    """The kernel's argument, see `gemm.cuh`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "part_rows", "shift", "tiles", "tiles_n")),
        *((name, ctypes.c_int64) for name in ("left_size", "left_row", "left_model", "right_size", "right_row")),
        *((name, ctypes.c_int64) for name in ("right_model", "first_row", "first_model", "models", "pitch")),
        *((name, ctypes.c_void_p) for name in ("left", "right", "first", "left_largest", "right_largest", "out")),
    )


def runs(left: Tensor, right: Tensor, rows: int) -> bool:
    """Return True if the kernel takes ``(M, ..., L)`` and ``(M, ..., R)`` over `rows` rows and is worth its launch."""
    return (
        left.is_cuda
        and left.dtype == right.dtype == torch.float32
        and len(left) * rows * left.shape[-1] * right.shape[-1] >= LEAST_WORK
        and rows <= MOST_ROWS
        and _limits(left.device) is not None
    )


@functools.cache
def _limits(device: torch.device) -> tuple[int, int] | None:
    """Multiprocessors of a GPU, and bytes of shared memory that a block may have; None where the kernel cannot run."""
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < OLDEST:
        return None
    if compile_cuda.unavailable(device.index) is not None:
        return None
    return torch.cuda.get_device_properties(device).multi_processor_count, block_bytes(device.index)


def product(
    left: Tensor,
    right: Tensor,
    first: Tensor | None = None,
    *,
    tile: GemmTile | None = None,
    parts: int | None = None,
) -> Tensor:
    """``Σ_n left_n' right_n`` for each model; with `first`, of B rows, right_n is row n - B of `right`, after `first`.

    Shapes:
        left: ``(M, N, L)``; right: ``(M, N, R)``; first: ``(M, B, R)``; result ``(M, L, R)``.

    Args:
        tile, parts: the tile and the number of parts; by default the cheapest.
    """
    models, rows, left_size = left.shape
    right_size = right.shape[-1]
    if left.numel() == 0 or right_size == 0:
        return left.new_zeros(models, left_size, right_size)
    left, right = _readable(left), _readable(right)
    first = None if first is None else _readable(first)
    limits = (_limits(left.device) if left.is_cuda else None) or (H200.multiprocessors, BLOCK_BYTES)
    tile, part_rows = choose_gemm_tile(models, rows, left_size, right_size, *limits, tile, parts)
    parts, tiles = ceil_div(rows, part_rows), tile.count(left_size, right_size)
    pitch = ceil_div(right_size, 4) * 4
    out = left.new_empty(parts, models, left_size, pitch)
    shift = 0 if first is None else first.shape[1]
    job = GemmJob(rows=rows, part_rows=part_rows, shift=shift, models=models, pitch=pitch)
    job.tiles, job.tiles_n = tiles, ceil_div(right_size, tile.block_n)
    job.left, job.left_size, job.left_model, job.left_row = left.data_ptr(), left_size, left.stride(0), left.stride(1)
    job.right, job.right_size, job.right_model, job.right_row = (
        right.data_ptr(),
        right_size,
        right.stride(0),
        right.stride(1),
    )
    if first is not None:
        job.first, job.first_model, job.first_row = first.data_ptr(), first.stride(0), first.stride(1)
    largest = [_largest(left), _largest(right[:, : max(0, rows - shift)], first)] if tile.fp16 else []
    if largest:
        job.left_largest, job.right_largest = (v.data_ptr() for v in largest)
    job.out = out.data_ptr()
    kernel = GemmKernel(tile, _by_4(left), _by_4(right) and (first is None or _by_4(first)))
    compile_cuda.launch(kernel, job, left, models, tiles * parts)
    out = out[..., :right_size]
    return out[0].contiguous() if parts == 1 else out.sum(0)


def _readable(x: Tensor) -> Tensor:
    """The same numbers, contiguous within a row, and with rows no further apart than the kernel can count."""
    return x if x.stride(-1) == 1 and x.stride(1) <= MOST_STRIDE else x.contiguous()


def _largest(*tensors: Tensor | None) -> Tensor:
    """The largest absolute number of each output of each model."""
    norms = [torch.linalg.vector_norm(x, math.inf, 1) for x in tensors if x is not None and x.numel()]
    return (norms[0] if len(norms) == 1 else torch.stack(norms).amax(0)).contiguous()


def _by_4(x: Tensor) -> bool:
    return x.data_ptr() % 16 == 0 and x.stride(0) % 4 == 0 and x.stride(1) % 4 == 0
