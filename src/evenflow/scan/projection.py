"""The input's share of every step on a GPU, for several models at once: one product there and one back.

The bias travels as a column of the weight, and its gradient as a column of the weight's: pre-activations of all steps
are by far the largest thing here, so they are written once and read once.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from evenflow.runtime.triton_kernels import triton_module
from evenflow.scan.register_operator import eager, operator
from evenflow.scan.weight_gradient import summed

THIN = 64  # inputs up to which a copy with a column of ones costs next to nothing


def _thin(x: Tensor, *others: Tensor) -> ModuleType | None:
    """The kernels for few inputs, where they can run."""
    kernels = triton_module("evenflow.scan.projection_cuda", x)
    return kernels if kernels is not None and kernels.suits(x, *others) else None


def _extended(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(1, 1, 1).expand(*x.shape[:-1], 1)], -1)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x W' + b`` for x ``(M, N, I)``, weight ``(M, L, I)`` and bias ``(M, L)``."""
    thin = _thin(x, weight)
    if thin is not None:
        return thin.forward(x, weight, bias)
    if bias is None:
        return x @ weight.mT
    if len(x) == 1:
        return torch.addmm(bias[0], x[0], weight[0].mT).unsqueeze(0)  # the bias is added as the product is written
    if x.shape[-1] > THIN:
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    return _extended(x) @ torch.cat([weight, bias.unsqueeze(-1)], -1).mT


def _backward(d: Tensor, x: Tensor, weight: Tensor, biased: bool, want_x: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by x (empty unless wanted), weight and bias (empty where there is none)."""
    d_x = d @ weight if want_x else x.new_empty(0)
    thin = _thin(x, d)
    if thin is not None:
        return d_x, *thin.backward(d, x, biased)
    if not biased:
        return d_x, summed(d, x), x.new_empty(0)
    if x.shape[-1] > THIN:
        return d_x, summed(d, x), d.sum(1)
    both = summed(d, _extended(x))
    return d_x, both[..., :-1].contiguous(), both[..., -1].contiguous()


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[1])


def _fake_backward(d: Tensor, x: Tensor, weight: Tensor, biased: bool, want_x: bool) -> tuple[Tensor, Tensor, Tensor]:
    d_bias = weight.new_empty(weight.shape[:2]) if biased else x.new_empty(0)
    return x.new_empty(x.shape if want_x else 0), weight.new_empty(weight.shape), d_bias


projection_backward = operator(
    "projection_backward",
    "(Tensor d, Tensor x, Tensor weight, bool biased, bool want_x) -> (Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)


backward = eager(projection_backward, _backward)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = bias is not None


def _autograd(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    want_x = ctx.needs_input_grad[0]
    d_x, d_weight, d_bias = backward(d, x, weight, ctx.biased, want_x)
    return d_x if want_x else None, d_weight, d_bias if ctx.biased else None


projection = operator(
    "projection", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _forward, _fake, _setup, _autograd
)
project = eager(projection, _forward, _setup, _autograd)
