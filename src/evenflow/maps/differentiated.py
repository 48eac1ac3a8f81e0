"""A map whose gradient is written out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evenflow.maps.map import Map
from evenflow.runtime.cuda_graphs import recomputed_gradients
from evenflow.runtime.torch_state import ieee_products, is_batched_gradient, is_observed


class Differentiated(Map):
    """A map whose subclass writes `evaluate` and `vjp` in place of `matrix`, and `plain`, the definition of both.

    `plain` is the same equation for torch to differentiate: tests compare the other two with it. It also runs under
    compilers, tracers, `torch.func` and forward mode, and for second derivatives.
    """

    def evaluate(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the matrix, and the tensors that `vjp` needs besides it."""
        raise NotImplementedError

    def vjp(self, G: Tensor, W: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the free numbers, from the gradient G of the matrix W."""
        raise NotImplementedError

    def plain(self, *raw: Tensor) -> Tensor:
        """Return the matrix by operations that torch can differentiate to any order."""
        raise NotImplementedError

    def matrix(self, *raw: Tensor) -> Tensor:
        if is_observed() or raw[0].is_meta:
            return self.plain(*raw)
        return _ByHand.apply(self, *raw)


class _ByHand(torch.autograd.Function):
    """`Differentiated.evaluate` with `Differentiated.vjp` as its gradient."""

    @staticmethod
    def forward(ctx: Any, map: Differentiated, *raw: Tensor) -> Tensor:
        with ieee_products(raw[0]):
            W, saved = map.evaluate(*raw)
        ctx.map, ctx.count = map, len(raw)
        ctx.save_for_backward(*raw, W, *saved)
        return W

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # read once: `torch.utils.checkpoint` returns each tensor a single time
        raw, (W, *saved) = tensors[: ctx.count], tensors[ctx.count :]
        if torch.is_grad_enabled() or is_batched_gradient(G):
            needed = ctx.needs_input_grad[1:]
            return None, *recomputed_gradients(lambda *raw: (ctx.map.plain(*raw),), raw, needed, [G])
        # The ten bits of TF32 are enough for a gradient of a layer; after some twenty products they are not.
        with torch.autocast(W.device.type, enabled=False), ieee_products(W):
            return None, *ctx.map.vjp(G.to(W.dtype), W, *saved)


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
