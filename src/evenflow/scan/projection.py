"""The input's share of all steps in one product, ``x W' + b``, before the recurrence.

torch's own products are slow where one side is thin, as the input of a recurrent layer often is: with two inputs, the
gradient of an LSTM's input matrix took torch as long as the whole backward recurrence. Compiled code takes their place
on a CPU. On a GPU the pre-activations of all steps are by far the largest tensor, so they are written once and read
once: the bias is a column of the weight, and its gradient a column of the weight's.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from evenflow.cells import Cell, Weights
from evenflow.runtime.torch_state import has_nonreverse_transform, plain_tensors, without_autocast
from evenflow.runtime.triton_kernels import triton_module
from evenflow.scan import cpu
from evenflow.scan.register_operator import operator
from evenflow.scan.weight_gradient import summed

THIN = 64  # inputs up to which a copy with a column of ones costs next to nothing


def project(cell: Cell, x: Tensor, weights: Weights, engine: str = "auto") -> Tensor:
    """The result of `cell.project`, by a faster product where there is one."""
    device, own = x.device.type, type(cell).project is not Cell.project
    if not own:
        _check_dtype(x, weights["weight_ih"])
    fast = engine == "auto" and not own and x.dtype in (torch.float32, torch.float64) and device in ("cpu", "cuda")
    if not fast or has_nonreverse_transform() or torch.is_autocast_enabled(device):
        return cell.project(x, weights)
    arguments = x, weights["weight_ih"], weights.get("bias")
    if plain_tensors(arguments):
        return _OneModel.apply(*arguments)
    return projection(*_as_models(*arguments)).view(*x.shape[:-1], len(arguments[1]))


def _check_dtype(x: Tensor, weight: Tensor) -> None:
    """Raise an error for an input that torch's product would refuse."""
    if x.dtype == weight.dtype:
        return
    casts = not x.is_meta and torch.is_autocast_enabled(x.device.type)
    if not casts or torch.float64 in (x.dtype, weight.dtype):  # autocast leaves float64 as it is
        raise ValueError(f"input must be {weight.dtype} as the layer's weights are, got {x.dtype}: convert one of them")


def _as_models(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """x ``(T, B, I)``, weight ``(L, I)`` and bias ``(L)`` as those of one model, see `_forward`."""
    return x.flatten(0, -2).unsqueeze(0), weight.unsqueeze(0), None if bias is None else bias.unsqueeze(0)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x W' + b`` of M models: x ``(M, N, I)``, weight ``(M, L, I)``, bias ``(M, L)``, result ``(M, N, L)``."""
    if len(x) == 1 and cpu.accepts(x, weight, bias):
        return cpu.linear(x[0], weight[0], None if bias is None else bias[0]).unsqueeze(0)
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
    none = x.new_empty(0)
    if cpu.accepts(d, x, weight):
        d, x = d.contiguous(), x.contiguous()
        d_x = none
        if want_x:
            d_x = cpu.linear(d[0], weight[0], None, transposed=False).unsqueeze(0) if len(x) == 1 else d @ weight
        d_weight = cpu.weight_gradient(d.unsqueeze(1), x.unsqueeze(1), None)
        return d_x, d_weight, d.sum(1) if biased else none
    d_x = d @ weight if want_x else none
    thin = _thin(x, d)
    if thin is not None:
        return d_x, *thin.backward(d, x, biased)
    if not biased:
        return d_x, summed(d, x), none
    if x.shape[-1] > THIN:
        return d_x, summed(d, x), d.sum(1)
    both = summed(d, _extended(x))
    return d_x, both[..., :-1].contiguous(), both[..., -1].contiguous()


def _thin(x: Tensor, *others: Tensor) -> ModuleType | None:
    """The Triton kernels for few inputs, where they can run."""
    kernels = triton_module("evenflow.scan.projection_cuda", x)
    return kernels if kernels is not None and kernels.suits(x, *others) else None


def _extended(x: Tensor) -> Tensor:
    """x with a column of ones, to which the bias is a column of the weight."""
    return torch.cat([x, x.new_ones(1, 1, 1).expand(*x.shape[:-1], 1)], -1)


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


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = bias is not None


@without_autocast
def _autograd(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    return _gradients(d, x, weight, ctx.biased, ctx.needs_input_grad[0])


def _gradients(
    d: Tensor, x: Tensor, weight: Tensor, biased: bool, want_x: bool
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """`_backward` with None for what is not wanted; by torch's operations where it is to be differentiated again."""
    if torch.is_grad_enabled():
        return d @ weight if want_x else None, d.mT @ x, d.sum(1) if biased else None
    run = _backward if plain_tensors((d, x, weight)) else projection_backward
    d_x, d_weight, d_bias = run(d, x, weight, biased, want_x)
    return d_x if want_x else None, d_weight, d_bias if biased else None


projection = operator(
    "projection", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _forward, _fake, _save, _autograd
)


class _OneModel(torch.autograd.Function):
    """The operator for one model and plain tensors: torch takes a tenth of a millisecond to find an operator's way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        _save(ctx, (x, weight, bias), x)
        return _forward(*_as_models(x, weight, bias)).view(*x.shape[:-1], len(weight))

    @staticmethod
    @without_autocast
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows, weights, _ = _as_models(x, weight, None)
        want_x = ctx.needs_input_grad[0]
        # `reshape` and `view`, which torch can batch (``is_grads_batched``), unlike `flatten`.
        d_rows = d.reshape(1, -1, d.shape[-1])
        d_x, d_weight, d_bias = _gradients(d_rows, rows, weights, ctx.biased, want_x)
        return None if d_x is None else d_x.view(x.shape), d_weight[0], None if d_bias is None else d_bias[0]
