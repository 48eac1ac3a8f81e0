"""Products over all steps at once: the input's share before the recurrence, and weight gradients after it.

torch's own products are slow where one side is thin, as the input of a recurrent layer often is: with an input of width
two, the gradient of an LSTM's input matrix took as long in torch as the whole backward recurrence does here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evenflow.runtime import compile_c as native
from evenflow.scan.register_operator import eager, operator

Product = native.structure("Linear", int64="rows in out down across threads", pointer="x weight bias y")
Gradient = native.structure(
    "Gradient", int64="models steps batch left right threads down x_down x0_down", pointer="d x0 x d_weight"
)


def weight_gradient(d: Tensor, x: Tensor, x0: Tensor | None) -> Tensor:
    """``Σ_t d_t' x_{t-1}`` with x_{-1} = x0, or ``Σ_t d_t' x_t`` without x0, by the compiled library.

    Shapes:
        d: ``(M, T, B, L)``; x: ``(M, T, B, R)``; x0: ``(M, B, R)``; result ``(M, L, R)``. All three may be
        columns of wider rows.
    """
    models, steps, batch, left = d.shape
    right = x.shape[-1]
    out = d.new_empty(models, left, right)
    if not out.numel() or not steps * batch:
        return out.zero_()
    sizes = {"models": models, "steps": steps, "batch": batch, "left": left, "right": right}
    rows = {"down": _row(d), "x_down": _row(x), "x0_down": 0 if x0 is None else _row(x0)}
    native.call("gradient", Gradient, d.dtype, **sizes, **rows, d=d, x=x, x0=x0, d_weight=out)
    return out


def _row(tensor: Tensor) -> int:
    """Numbers from row to row of a tensor whose rows, all alike, may be columns of wider ones."""
    rows = tensor.shape[:-1]
    at = next((n for n in reversed(range(len(rows))) if rows[n] > 1), None)
    if at is None:
        return tensor.shape[-1]
    between = 1
    for n in range(at + 1, len(rows)):
        between *= rows[n]
    return tensor.stride(at) // between


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    """``x W' + b``, or ``x W + b``, for x ``(N, I)``, by the compiled library."""
    rows, width = x.shape
    out = weight.shape[0] if transposed else weight.shape[1]
    down, across = (1, width) if transposed else (out, 1)
    y = x.new_empty(rows, out)
    sizes = {"rows": rows, "in": width, "out": out, "down": down, "across": across}
    native.call("linear", Product, x.dtype, **sizes, x=x, weight=weight, bias=bias, y=y)
    return y


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not native.runs(x, weight, bias):
        return torch.nn.functional.linear(x, weight, bias)
    rows = x.flatten(0, -2).contiguous()
    bias = None if bias is None else bias.contiguous()
    return _product(rows, weight.contiguous(), bias, True).view(*x.shape[:-1], len(weight))


def _backward(d: Tensor, x: Tensor, weight: Tensor, want_x: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by x (empty unless wanted), weight and bias."""
    d_rows, rows = d.flatten(0, -2).contiguous(), x.flatten(0, -2).contiguous()
    d_bias = d_rows.sum(0)
    d_x = x.new_empty(0)
    if not native.runs(d, x, weight):
        if want_x:
            d_x = (d_rows @ weight).view_as(x)
        return d_x, d_rows.mT @ rows, d_bias
    if want_x:
        d_x = _product(d_rows, weight.contiguous(), None, False).view_as(x)
    left = d_rows.shape[1]
    sizes = {"models": 1, "steps": 1, "batch": len(rows), "left": left, "right": rows.shape[1]}
    sizes |= {"down": left, "x_down": rows.shape[1]}
    d_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
    native.call("gradient", Gradient, d.dtype, **sizes, d=d_rows, x=rows, d_weight=d_weight)
    return d_x, d_weight, d_bias


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _fake_backward(d: Tensor, x: Tensor, weight: Tensor, want_x: bool) -> tuple[Tensor, Tensor, Tensor]:
    d_x = x.new_empty(x.shape if want_x else 0)
    return d_x, weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


linear_backward = operator(
    "linear_backward",
    "(Tensor d, Tensor x, Tensor weight, bool want_x) -> (Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)


backward = eager(linear_backward, _backward)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = bias is not None


def _autograd(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    want_x = ctx.needs_input_grad[0]
    if torch.is_grad_enabled():  # the gradients are to be differentiated again
        rows = d.flatten(0, -2)
        d_weight = rows.mT @ x.flatten(0, -2)
        return d @ weight if want_x else None, d_weight, rows.sum(0) if ctx.biased else None
    d_x, d_weight, d_bias = backward(d, x, weight, want_x)
    return d_x if want_x else None, d_weight, d_bias if ctx.biased else None


def _vmap(
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
    "linear", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor", _forward, _fake, _setup, _autograd, _vmap
)
project = eager(linear, _forward, _setup, _autograd)
