"""All layers of rotations in one CUDA kernel: the matrix, and its gradient. Imported by `rotations` on CUDA alone.

One program computes a few columns of the matrix, layer by layer. Its own threads have written the rows it reads next,
so that a barrier inside the program is enough. `Rotations.layered_forward` and `layered_vjp` do the same in torch.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

COLUMNS = 8  # of the matrix for one program: 64 bytes of a float64 row


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    angles, permutations, work, out, layers, n, half, HALF: tl.constexpr, COLUMNS: tl.constexpr
):
    model = tl.program_id(1).to(tl.int64)
    i = tl.arange(0, HALF)[:, None]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    row_live = i < half
    live = row_live & (column < n)
    work += model * 2 * n * n
    out += model * n * n
    angles += model * layers * half
    for step in range(layers):
        k = layers - 1 - step
        first = tl.load(permutations + k * n + i, mask=row_live, other=0)
        second = tl.load(permutations + k * n + half + i, mask=row_live, other=0)
        angle = tl.load(angles + k * half + i, mask=row_live, other=0.0).to(tl.float64)
        cos, sin = tl.cos(angle), tl.sin(angle)
        if step == 0:
            # The rows of the identity, permuted.
            a = (first == column).to(tl.float64)
            b = (second == column).to(tl.float64)
        else:
            source = work + ((step + 1) % 2) * n * n
            a = tl.load(source + first * n + column, mask=live, other=0.0)
            b = tl.load(source + second * n + column, mask=live, other=0.0)
        top, bottom = cos * a - sin * b, sin * a + cos * b
        if step == layers - 1:
            tl.store(out + i * n + column, top, mask=live)
            tl.store(out + (half + i) * n + column, bottom, mask=live)
        else:
            target = work + (step % 2) * n * n
            tl.store(target + i * n + column, top, mask=live)
            tl.store(target + (half + i) * n + column, bottom, mask=live)
        tl.debug_barrier()


@triton.jit
def _vjp(  # type: ignore[no-untyped-def]
    angles, permutations, matrix, grad, work, parts, layers, n, half, blocks, HALF: tl.constexpr, COLUMNS: tl.constexpr
):
    block, model = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, HALF)
    i = rows[:, None]
    column = block * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    row_live = i < half
    live = row_live & (column < n)
    size = n * n
    work += model * 4 * size
    parts += (model * blocks + block) * layers * half
    angles += model * layers * half
    # The first layer reads the matrix and its gradient, the others the results of the layer before.
    Y, D = matrix + model * size, grad + model * size
    for k in range(layers):
        if k > 0:
            Y = work + ((k + 1) % 2) * 2 * size
            D = Y + size
        a = tl.load(Y + i * n + column, mask=live, other=0.0)
        b = tl.load(Y + (half + i) * n + column, mask=live, other=0.0)
        da = tl.load(D + i * n + column, mask=live, other=0.0)
        db = tl.load(D + (half + i) * n + column, mask=live, other=0.0)
        tl.store(parts + k * half + rows, tl.sum(db * a - da * b, 1), mask=rows < half)
        angle = tl.load(angles + k * half + i, mask=row_live, other=0.0)
        cos, sin = tl.cos(angle), tl.sin(angle)
        # Rotate back, then undo the permutation.
        first = tl.load(permutations + k * n + i, mask=row_live, other=0)
        second = tl.load(permutations + k * n + half + i, mask=row_live, other=0)
        target = work + (k % 2) * 2 * size
        tl.store(target + first * n + column, cos * a + sin * b, mask=live)
        tl.store(target + second * n + column, cos * b - sin * a, mask=live)
        tl.store(target + size + first * n + column, cos * da + sin * db, mask=live)
        tl.store(target + size + second * n + column, cos * db - sin * da, mask=live)
        tl.debug_barrier()


def forward(angles: Tensor, permutations: Tensor) -> Tensor:
    """Return the matrix ``(..., n, n)`` of angles ``(..., k, n/2)``, computed in float64."""
    layers, half = angles.shape[-2:]
    n, lead = 2 * half, angles.shape[:-2]
    models = lead.numel()
    out = angles.new_empty(*lead, n, n)
    work = torch.empty(models, 2, n, n, dtype=torch.float64, device=angles.device)
    with torch.cuda.device(angles.device):
        _forward[(triton.cdiv(n, COLUMNS), models)](
            angles.contiguous(),
            permutations,
            work,
            out,
            layers,
            n,
            half,
            HALF=triton.next_power_of_2(half),
            COLUMNS=COLUMNS,
            num_stages=1,  # the loads of a layer must not be moved before the barrier of the one before
        )
    return out


def vjp(G: Tensor, W: Tensor, angles: Tensor, permutations: Tensor) -> Tensor:
    """Return the gradient of the angles, from the matrix W and its gradient G."""
    layers, half = angles.shape[-2:]
    n, lead = 2 * half, angles.shape[:-2]
    models, blocks = lead.numel(), triton.cdiv(n, COLUMNS)
    work = angles.new_empty(models, 2, 2, n, n)
    parts = angles.new_empty(*lead, blocks, layers, half)
    with torch.cuda.device(angles.device):
        _vjp[(blocks, models)](
            angles.contiguous(),
            permutations,
            W.contiguous(),
            G.contiguous(),
            work,
            parts,
            layers,
            n,
            half,
            blocks,
            HALF=triton.next_power_of_2(half),
            COLUMNS=COLUMNS,
            num_stages=1,
        )
    return parts.sum(-3)
