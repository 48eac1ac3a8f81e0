"""Matrix products with a long inner dimension: weight gradients, which are sums over all steps and rows."""

from __future__ import annotations

from torch import Tensor

from evenflow.scan.cuda import gemm

# Products of one batched call that a GPU works on at once, and the rows below which one of them is not worth its start.
PARTS, LEAST_ROWS = 256, 1024


def summed(left: Tensor, right: Tensor) -> Tensor:
    """``Σ_n left_n' right_n`` for each model, in partial sums that run in parallel.

    cuBLAS splits a long inner dimension of a plain product, but not of a batched one, which with few models leaves
    most of a GPU idle. Large ones in single precision run on tensor cores; see `cuda.gemm`.

    Shapes:
        left: ``(M, N, L)``; right: ``(M, N, R)``; result ``(M, L, R)``.
    """
    models, rows = left.shape[:2]
    if gemm.runs(left, right, rows):
        return gemm.product(left, right)
    if models == 1:
        return (left[0].mT @ right[0]).unsqueeze(0)
    parts = max(1, min(PARTS // models, rows // LEAST_ROWS))
    each = rows // parts
    split = [v[:, : each * parts].unflatten(1, (parts, each)) for v in (left, right)]
    total = (split[0].mT @ split[1]).sum(1)
    if each * parts < rows:
        total += left[:, each * parts :].mT @ right[:, each * parts :]
    return total


def without_restarts(x: Tensor, x0: Tensor | None, resets: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """x and x0 as `engine.scan_gradients` has them, with zeros where the product of a step with a reset reads them."""
    if resets is None:
        return x, x0
    at = resets != 0
    if x0 is None:
        return x.masked_fill(at, 0), None
    return x.masked_fill(at.roll(-1, 1), 0), x0.masked_fill(at[:, 0], 0)  # nothing reads the last of x
