"""Triton kernels for the product with the input, for few inputs: bound by reading and writing the pre-activations.

Imported by `projection` on CUDA alone. For an inner dimension of two, cuBLAS took twice the time of writing the result,
and for the gradient three times the time of reading it.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

MOST = 16  # inputs: each is a pass over numbers in registers
ROWS, WIDE, WARPS = 32, 128, 2  # of pre-activations for one program, and its warps


@triton.jit(do_not_specialize=["rows"])  # compiled once for every batch and length
def _forward(  # type: ignore[no-untyped-def]
    x, weight, bias, out, rows, wide, I: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    model = tl.program_id(2).to(tl.int64)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    l = tl.program_id(1) * WIDE + tl.arange(0, WIDE)[None, :]
    total = tl.zeros((ROWS, WIDE), out.dtype.element_ty)
    if BIASED:
        total += tl.load(bias + model * wide + l, mask=l < wide, other=0.0)
    for i in tl.static_range(I):
        w = tl.load(weight + (model * wide + l) * I + i, mask=l < wide, other=0.0)
        total += tl.load(x + (model * rows + r) * I + i, mask=r < rows, other=0.0) * w
    tl.store(out + (model * rows + r) * wide + l, total, mask=(r < rows) & (l < wide))


@triton.jit(do_not_specialize=["rows"])  # compiled once for every batch and length
def _backward(  # type: ignore[no-untyped-def]
    d, x, parts, rows, wide, I: tl.constexpr, BIASED: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr
):
    model = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    r = part * ROWS + tl.arange(0, ROWS)[:, None]
    l = tl.program_id(1) * WIDE + tl.arange(0, WIDE)[None, :]
    slope = tl.load(d + (model * rows + r) * wide + l, mask=(r < rows) & (l < wide), other=0.0)
    parts += (model * tl.num_programs(0) + part) * (I + BIASED) * wide + l
    for i in tl.static_range(I):
        column = tl.load(x + (model * rows + r) * I + i, mask=r < rows, other=0.0)
        tl.store(parts + i * wide, tl.sum(slope * column, 0)[None, :], mask=l < wide)
    if BIASED:
        tl.store(parts + I * wide, tl.sum(slope, 0)[None, :], mask=l < wide)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x W' + b``, shapes as in `projection`."""
    models, rows, inputs = x.shape
    wide = weight.shape[1]
    out = x.new_empty(models, rows, wide)
    bias_or_unused = (weight if bias is None else bias).contiguous()
    settings = {"I": inputs, "BIASED": bias is not None, "ROWS": ROWS, "WIDE": WIDE, "num_warps": WARPS}
    with torch.cuda.device(x.device):
        _forward[_grid(x, wide)](x.contiguous(), weight.contiguous(), bias_or_unused, out, rows, wide, **settings)
    return out


def backward(d: Tensor, x: Tensor, biased: bool) -> tuple[Tensor, Tensor]:
    """The gradients by weight and bias (empty without a bias); sums have a fixed order."""
    models, rows, inputs = x.shape
    wide = d.shape[-1]
    grid = _grid(x, wide)
    parts = x.new_empty(models, grid[0], inputs + biased, wide)
    settings = {"I": inputs, "BIASED": biased, "ROWS": ROWS, "WIDE": WIDE, "num_warps": WARPS}
    with torch.cuda.device(x.device):
        _backward[grid](d.contiguous(), x.contiguous(), parts, rows, wide, **settings)
    both = parts.sum(1)
    return both[:, :inputs].mT.contiguous(), both[:, inputs].contiguous() if biased else x.new_empty(0)


def suits(x: Tensor, *others: Tensor) -> bool:
    """Return True if these kernels take x ``(M, N, I)`` and the other tensors."""
    alike = all(v.dtype == x.dtype and v.device == x.device for v in others)
    return alike and 0 < x.shape[-1] <= MOST and x.numel() > 0 and x.dtype in (torch.float32, torch.float64)


def _grid(x: Tensor, wide: int) -> tuple[int, int, int]:
    return triton.cdiv(x.shape[1], ROWS), triton.cdiv(wide, WIDE), len(x)
