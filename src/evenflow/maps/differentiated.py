"""A map whose gradient is written out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from evenflow.maps.map import Map
from evenflow.runtime.torch_state import followed


class Differentiated(Map):
    """A map with `value` and `slope` in place of `matrix`, and `plain`, the same equation for torch to differentiate.

    `plain` is the definition: tests hold the other two to it. It also serves where torch wants to see the operations:
    see `onlookers`, and for a gradient of the gradient.
    """

    def value(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The matrix, and what `slope` needs to know besides it."""
        raise NotImplementedError

    def slope(self, G: Tensor, W: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        """The gradients of the free numbers, from that of the matrix."""
        raise NotImplementedError

    def plain(self, *raw: Tensor) -> Tensor:
        """The matrix by operations that torch can differentiate to any order."""
        raise NotImplementedError

    def matrix(self, *raw: Tensor) -> Tensor:
        if followed() or raw[0].is_meta:
            return self.plain(*raw)
        return _ByHand.apply(self, *raw)


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, map: Differentiated, *raw: Tensor) -> Tensor:
        with ieee_products(raw[0]):
            W, kept = map.value(*raw)
        ctx.map, ctx.count = map, len(raw)
        ctx.save_for_backward(*raw, W, *kept)
        return W

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: `torch.utils.checkpoint` gives each out a single time
        raw, (W, *kept) = saved[: ctx.count], saved[ctx.count :]
        again = torch.is_grad_enabled()
        if again or torch._C._functorch.is_legacy_batchedtensor(G):
            # A gradient of this gradient is wanted, or many side by side (`is_grads_batched`).
            moving = [r for r in raw if r.requires_grad]
            with torch.enable_grad():
                W = ctx.map.plain(*raw)
            found = iter(torch.autograd.grad(W, moving, G, create_graph=again, allow_unused=True))
            return None, *(next(found) if r.requires_grad else None for r in raw)
        # Ten bits of a gradient are enough for a layer; on its way through some twenty products they are not.
        with torch.autocast(W.device.type, enabled=False), ieee_products(W):
            return None, *ctx.map.slope(G.to(W.dtype), W, *kept)


@contextmanager
def ieee_products(tensor: Tensor) -> Iterator[None]:
    """Matrix products of `tensor`'s device in whole float32, where the user has allowed shorter ones.

    Ten bits of mantissa (TF32) are enough for a layer and not for an orthogonal matrix. The setting is put back after.
    """
    backend = torch.backends.cuda.matmul if tensor.is_cuda else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = backend.fp32_precision
    if before in ("ieee", "none"):
        yield
        return
    backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        backend.fp32_precision = before


def addmm(c: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta c + alpha a b`` in one operation, with or without leading dimensions."""
    if c.dim() == 2:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    lead, shape = c.shape[:-2], c.shape
    flat = (x.expand(*lead, *x.shape[-2:]).flatten(0, -3) for x in (c, a, b))
    return torch.baddbmm(*flat, beta=beta, alpha=alpha).reshape(shape)


def minus_mm(a: Tensor, b: Tensor) -> Tensor:
    """``-ab`` in one operation."""
    if a.dim() == 2:
        return torch.addmm(a.new_empty(1, 1), a, b, beta=0, alpha=-1)
    return -(a @ b)


def tighten(W: Tensor) -> Tensor:
    """One step of Newton and Schulz, ``W(3I - WᴴW)/2``: a residual of ε becomes ε² plus one rounding."""
    return addmm(W, W, W.mH @ W, 1.5, -0.5)
