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
from evenflow.scan import c_library, cpu
from evenflow.scan.register_operator import operator
from evenflow.scan.weight_gradient import summed

THIN = 64  # inputs up to which a copy with a column of ones costs next to nothing
LinearCall = c_library.structure("LinearCall", int64="rows in out down across threads", pointer="x weight bias y")


def project(cell: Cell, x: Tensor, weights: Weights, engine: str = "auto") -> Tensor:
    """The result of `cell.project`, by a faster product where there is one."""
    device, own = x.device.type, type(cell).project is not Cell.project
    if not own:
        _check_dtype(x, weights["weight_ih"])
    fast = engine == "auto" and not own and x.dtype in (torch.float32, torch.float64) and device in ("cpu", "cuda")
    if not fast or has_nonreverse_transform() or torch.is_autocast_enabled(device):
        return cell.project(x, weights)
    weight, bias = weights["weight_ih"], weights.get("bias")
    if device == "cpu":
        plain = plain_tensors((x, weight) if bias is None else (x, weight, bias))
        return _Linear.apply(x, weight, bias) if plain else linear(x, weight, bias)
    arguments = (x.flatten(0, 1).unsqueeze(0), weight.unsqueeze(0), None if bias is None else bias.unsqueeze(0))
    y = _Projection.apply(*arguments) if plain_tensors(arguments) else projection(*arguments)
    return y.view(*x.shape[:2], -1)


def _check_dtype(x: Tensor, weight: Tensor) -> None:
    """Raise an error for an input that torch's product would refuse."""
    if x.dtype == weight.dtype:
        return
    casts = not x.is_meta and torch.is_autocast_enabled(x.device.type)
    if not casts or torch.float64 in (x.dtype, weight.dtype):  # autocast leaves float64 as it is
        raise ValueError(f"input must be {weight.dtype} as the layer's weights are, got {x.dtype}: convert one of them")


# On a CPU: x (..., I), weight (L, I), bias (L).


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not c_library.runs(x, weight, bias):
        return torch.nn.functional.linear(x, weight, bias)
    bias = None if bias is None else bias.contiguous()
    return _product(x.flatten(0, -2).contiguous(), weight.contiguous(), bias, True).view(*x.shape[:-1], len(weight))


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    """``x W' + b``, or ``x W + b``, for x ``(N, I)``, by the compiled library."""
    rows, width = x.shape
    out = weight.shape[0] if transposed else weight.shape[1]
    down, across = (1, width) if transposed else (out, 1)
    y = x.new_empty(rows, out)
    sizes = {"rows": rows, "in": width, "out": out, "down": down, "across": across}
    c_library.call("linear", LinearCall, x.dtype, **sizes, x=x, weight=weight, bias=bias, y=y)
    return y


def _linear_backward(d: Tensor, x: Tensor, weight: Tensor, want_x: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by x (empty unless wanted), weight and bias."""
    d_rows, rows = d.flatten(0, -2).contiguous(), x.flatten(0, -2).contiguous()
    d_bias, d_x = d_rows.sum(0), x.new_empty(0)
    if not c_library.runs(d, x, weight):
        if want_x:
            d_x = (d_rows @ weight).view_as(x)
        return d_x, d_rows.mT @ rows, d_bias
    if want_x:
        d_x = _product(d_rows, weight.contiguous(), None, False).view_as(x)
    return d_x, cpu.weight_gradient(d_rows[None, None], rows[None, None], None).squeeze(0), d_bias


def _fake_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _fake_linear_backward(d: Tensor, x: Tensor, weight: Tensor, want_x: bool) -> tuple[Tensor, Tensor, Tensor]:
    d_x = x.new_empty(x.shape if want_x else 0)
    return d_x, weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


linear_backward = operator(
    "linear_backward",
    "(Tensor d, Tensor x, Tensor weight, bool want_x) -> (Tensor, Tensor, Tensor)",
    _linear_backward,
    _fake_linear_backward,
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = bias is not None


@without_autocast
def _linear_autograd(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    want_x = ctx.needs_input_grad[0]
    if torch.is_grad_enabled():  # the gradients are to be differentiated again
        rows = d.flatten(0, -2)
        d_weight = rows.mT @ x.flatten(0, -2)
        return d @ weight if want_x else None, d_weight, rows.sum(0) if ctx.biased else None
    run = _linear_backward if plain_tensors((d, x, weight)) else linear_backward
    d_x, d_weight, d_bias = run(d, x, weight, want_x)
    return d_x if want_x else None, d_weight, d_bias if ctx.biased else None


def _linear_vmap(
    info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, int]:
    """With a weight for each model it is one batched product."""
    x, weight = (
        value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip((x, weight), in_dims, strict=False)
    )
    y = x.flatten(1, -2) @ weight.mT
    if bias is not None:
        y = y + (bias if in_dims[2] is None else bias.movedim(in_dims[2], 0)[:, None])
    return y.view(*x.shape[:-1], weight.shape[1]), 0


linear = operator(
    "linear",
    "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    _linear,
    _fake_linear,
    _save,
    _linear_autograd,
    _linear_vmap,
)


class _Linear(torch.autograd.Function):
    """The operator for plain tensors: torch takes a tenth of a millisecond to find an operator's way."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        _save(ctx, arguments, arguments[0])
        return _linear(*arguments)

    backward = staticmethod(_linear_autograd)


# On a GPU, for M models: x (M, N, I), weight (M, L, I), bias (M, L).


def _thin(x: Tensor, *others: Tensor) -> ModuleType | None:
    """The kernels for few inputs, where they can run."""
    kernels = triton_module("evenflow.scan.projection_cuda", x)
    return kernels if kernels is not None and kernels.suits(x, *others) else None


def _extended(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(1, 1, 1).expand(*x.shape[:-1], 1)], -1)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
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


@without_autocast
def _autograd(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    want_x = ctx.needs_input_grad[0]
    run = _backward if not torch.is_grad_enabled() and plain_tensors((d, x, weight)) else projection_backward
    d_x, d_weight, d_bias = run(d, x, weight, ctx.biased, want_x)
    return d_x if want_x else None, d_weight, d_bias if ctx.biased else None


projection = operator(
    "projection", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _forward, _fake, _save, _autograd
)


class _Projection(torch.autograd.Function):
    """The operator for plain tensors, see `_Linear`."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        _save(ctx, arguments, arguments[0])
        return _forward(*arguments)

    backward = staticmethod(_autograd)
