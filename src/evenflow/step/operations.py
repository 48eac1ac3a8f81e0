"""The operations of torch that a step may use, each in terms of the operations of `graph`.

torch decomposes its composed functions before they are traced, so that one entry serves several: `chunk`, `split` and
indexing are slices, `linear` and ``@`` are ``mm`` or ``addmm``. The file is past 300 lines because it is one table,
`OPERATIONS`, with its entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from evenflow.step.graph import View
from evenflow.step.trace import Call, Value, point, reduced

Operand = Value | float


def _pointwise(function: Callable[..., Value]) -> Callable[..., Value]:
    def handler(call: Call, *args: Any, **kwargs: Any) -> Value:
        for v in (*args, *kwargs.values()):
            if isinstance(v, View):
                raise call.refuse("of a matrix", "change matrices before the steps, in `prepare`")
        return function(*args, **kwargs)

    return handler


def _plain(op: str, inputs: int = 1) -> Callable[..., Value]:
    return lambda *operands: point(op, *operands[:inputs])


def _add(x: Operand, y: Operand, alpha: float = 1) -> Value:
    return point("add", x, y if alpha == 1 else point("mul", y, alpha))


def _sub(x: Operand, y: Operand, alpha: float = 1) -> Value:
    return point("sub", x, y if alpha == 1 else point("mul", y, alpha))


def _pow(x: Operand, exponent: Operand) -> Value:
    if isinstance(exponent, Value) and exponent.op == "const":
        exponent = exponent.extra
    if isinstance(exponent, Value) or isinstance(x, int | float):
        return point("exp", point("mul", exponent, point("log", x)))
    if exponent == 0.5:
        return point("sqrt", x)
    if exponent == int(exponent) and 0 < abs(exponent) <= 8:
        power = x
        for _ in range(int(abs(exponent)) - 1):
            power = power * x
        return power if exponent > 0 else 1 / power
    return point("exp", exponent * point("log", x))


def _clamp(x: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    x = x if min is None else point("max", x, min)
    return x if max is None else point("min", x, max)


def _less(x: Operand, y: Operand) -> Value:
    return point("less", x, y)


def _not(x: Operand) -> Value:
    return point("equal", x, 0.0)


def _where(c: Value, x: Operand, y: Operand) -> Value:
    return point("where", c, x, y)


def _softplus(x: Value, beta: float = 1, threshold: float = 20) -> Value:
    scaled = x * beta
    return _where(_less(threshold, scaled), x, point("log1p", point("exp", _clamp(scaled, max=threshold))) / beta)


def _elu(x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    return _where(_less(0.0, x), x * scale, point("expm1", _clamp(x, max=0.0) * input_scale) * (alpha * scale))


def _gelu(x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        return 0.5 * x * (1 + point("tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + point("erf", x * math.sqrt(0.5)))


def _log_sigmoid(x: Value) -> Value:
    return _clamp(x, max=0.0) - point("log1p", point("exp", -point("abs", x)))


POINTWISE: dict[str, Callable[..., Value]] = {
    **{op: _plain(op) for op in ("neg", "tanh", "sigmoid", "exp", "expm1", "log", "log1p", "sin", "cos", "sqrt")},
    **{op: _plain(op) for op in ("abs", "sign", "relu", "erf")},
    "sgn": _plain("sign"),
    "add": _add,
    "sub": _sub,
    "rsub": lambda x, y, alpha=1: _sub(y, x, alpha),
    "mul": _plain("mul", 2),
    "div": _plain("div", 2),
    "maximum": _plain("max", 2),
    "minimum": _plain("min", 2),
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / point("sqrt", x),
    "square": lambda x: x * x,
    "pow": _pow,
    "tan": lambda x: point("sin", x) / point("cos", x),
    "exp2": lambda x: point("exp", x * math.log(2)),
    "log2": lambda x: point("log", x) * (1 / math.log(2)),
    "clamp": _clamp,
    "clamp_min": lambda x, low: _clamp(x, min=low),
    "clamp_max": lambda x, high: _clamp(x, max=high),
    "hardtanh": lambda x, low=-1.0, high=1.0: _clamp(x, low, high),
    "hardsigmoid": lambda x: _clamp(x * (1 / 6) + 0.5, 0.0, 1.0),
    "hardswish": lambda x: x * _clamp(x * (1 / 6) + 0.5, 0.0, 1.0),
    "leaky_relu": lambda x, slope=0.01: _where(_less(0.0, x), x, x * slope),
    "_prelu_kernel": lambda x, slope: _where(_less(0.0, x), x, x * slope),
    "threshold": lambda x, threshold, value: _where(_less(threshold, x), x, value),
    "elu": _elu,
    "celu": lambda x, alpha=1.0: _elu(x, alpha, 1, 1 / alpha),
    "silu": lambda x: x * point("sigmoid", x),
    "mish": lambda x: x * point("tanh", _softplus(x)),
    "gelu": _gelu,
    "softplus": _softplus,
    "lerp": lambda x, y, w: w * y + (1 - w) * x,  # exactly x where w = 0, and y where w = 1
    "addcmul": lambda x, y, z, value=1: x + y * z * value,
    "addcdiv": lambda x, y, z, value=1: x + y / z * value,
    "where": _where,
    "masked_fill": lambda x, mask, value: _where(mask, value, x),
    "gt": lambda x, y: _less(y, x),
    "lt": _less,
    "ge": lambda x, y: point("less_equal", y, x),
    "le": lambda x, y: point("less_equal", x, y),
    "eq": lambda x, y: point("equal", x, y),
    "ne": lambda x, y: _not(point("equal", x, y)),
    "logical_not": _not,
    "bitwise_not": _not,
    "logical_and": _plain("mul", 2),
    "bitwise_and": _plain("mul", 2),
    "logical_or": _plain("max", 2),
    "bitwise_or": _plain("max", 2),
}
UNCHANGED = (
    "alias",
    "clone",
    "_to_copy",
    "lift_fresh",
    "lift_fresh_copy",
    "expand",
    "detach_",
)  # the result has the same numbers
RESHAPED = ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze")


def _same(call: Call, x: Any, *_: Any, **__: Any) -> Any:
    if isinstance(x, View) or call.result.shape[-1:] == call.args[0].shape[-1:]:
        return x
    if x.size == 1:  # a number per row for each unit
        size = call.result.shape[-1] if call.result.dim() else 1
        return x if size == 1 else Value("wide", (x,), size)
    raise call.refuse(
        "changes the shape of a state", "keep states (B, n), and cut and join them along the last dimension"
    )


def _reshaped(call: Call, x: Any, *_: Any) -> Any:
    before, after = call.args[0].shape, call.result.shape
    if not isinstance(x, View) and before[-1:] == after[-1:]:  # dimensions of one come and go before the last
        return x
    if not isinstance(x, View) and x.size == 1 and (not len(after) or after[-1] == 1):
        return x
    raise call.refuse(f"from {tuple(before)} to {tuple(after)}", "cut and join states along the last dimension instead")


def _transposed(call: Call, x: Any, *_: Any) -> Any:
    if isinstance(x, View):
        return View(x.matrix, not x.transposed, x.row, x.rows, x.column, x.columns)
    raise call.refuse("of a state", "only matrices may be transposed")


def _part(call: Call, x: Any, dim: int, start: int, length: int) -> Any:
    dims = call.args[0].dim()
    if isinstance(x, View):
        if (dim % dims == 0) != x.transposed:
            return View(x.matrix, x.transposed, x.row + start, length, x.column, x.columns)
        return View(x.matrix, x.transposed, x.row, x.rows, x.column + start, length)
    call.check_last_dim(dim, call.args[0])
    return x if length == x.size else Value("slice", (x,), length, start)


def _slice(call: Call, x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    size = call.args[0].shape[dim]
    first, last, _ = slice(start, end).indices(size)
    if step != 1:
        raise call.refuse(f"with step {step}", "cut a state into halves with chunk")
    if last - first == size:
        return x
    return _part(call, x, dim, first, max(0, last - first))


def _split(call: Call, x: Any, _: Any, dim: int = 0) -> list[Any]:
    parts, at = [], 0
    for piece in call.result:
        parts.append(_part(call, x, dim, at, piece.shape[dim]))
        at += piece.shape[dim]
    return parts


def _select(call: Call, x: Any, dim: int, index: int) -> Any:
    """Indexing one column removes the dimension of units."""
    raise call.refuse("takes a dimension away", "use a slice such as x[:, i : i + 1]")


def _cat(call: Call, parts: list[Any], dim: int = 0) -> Value:
    call.check_last_dim(dim, call.result)
    if any(isinstance(v, View) for v in parts):
        raise call.refuse("of matrices", "join matrices before the steps, in `prepare`")
    return Value("cat", tuple(parts), sum(v.size for v in parts))


def _product(call: Call, x: Any, weight: Any) -> Value:
    if isinstance(x, View) or not isinstance(weight, View):
        raise call.refuse("of two states, or of two matrices", "multiply a state (B, n) by a matrix: h @ U.mT")
    # x @ W.mT is the plain case, for which the view is not `transposed`.
    view = View(weight.matrix, not weight.transposed, weight.row, weight.rows, weight.column, weight.columns)
    return Value("product", (x,), call.result.shape[-1], view)


def _addmm(call: Call, bias: Value, x: Any, weight: Any, beta: float = 1, alpha: float = 1) -> Value:
    return bias * beta + _product(call, x, weight) * alpha


def _sum(call: Call, x: Value, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    _check_reduction(call, dim, keepdim)
    return reduced("sum", x)


def _mean(call: Call, x: Value, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    _check_reduction(call, dim, keepdim)
    return _average(x)


def _average(x: Value) -> Value:
    return reduced("sum", x) * (1 / x.size)


def _var(call: Call, x: Value, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Value:
    _check_reduction(call, dim, keepdim)
    apart = x - _average(x)
    return reduced("sum", apart * apart) * (1 / max(1, x.size - (1 if correction is None else correction)))


def _amax(call: Call, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    _check_reduction(call, dim, keepdim)
    return reduced("amax", x)


def _check_reduction(call: Call, dim: Any, keepdim: bool) -> None:
    call.check_last_dim(dim, call.args[0])
    if not keepdim:
        raise call.refuse("without keepdim=True", "keep the dimension: x.mean(-1, keepdim=True)")


def _layer_norm(call: Call, x: Value, shape: Any, weight: Value | None, bias: Value | None, eps: float) -> list[Value]:
    mean = _average(x)
    apart = x - mean
    scale = 1 / point("sqrt", _average(apart * apart) + eps)
    y = apart * scale
    y = y if weight is None else y * weight
    return [y if bias is None else y + bias, mean, scale]


def _softmax(call: Call, x: Value, dim: int, _: bool) -> Value:
    call.check_last_dim(dim, call.args[0])
    raised = point("exp", x - reduced("amax", x))
    return raised / reduced("sum", raised)


def _detach(call: Call, x: Any) -> Value:
    if isinstance(x, View):
        raise call.refuse("of a matrix", "detach the state that it multiplies, or the product")
    return Value("detach", (x,), x.size)


def _filled(value: float) -> Callable[..., Value]:
    def handler(call: Call, *_: Any, **__: Any) -> Value:
        return _constant(call, value)

    return handler


def _constant(call: Call, value: float) -> Value:
    size = call.result.shape[-1] if call.result.dim() else 1
    one = Value("const", (), 1, float(value))
    return one if size == 1 else Value("wide", (one,), size)


OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: _pointwise(function) for name, function in POINTWISE.items()},
    **dict.fromkeys(UNCHANGED, _same),
    **dict.fromkeys(RESHAPED, _reshaped),
    "detach": _detach,
    **dict.fromkeys(("t", "transpose", "permute", "numpy_T"), _transposed),
    "slice": _slice,
    "split": _split,
    "split_with_sizes": _split,
    "narrow": _part,
    "select": _select,
    "cat": _cat,
    "mm": _product,
    "addmm": _addmm,
    "sum": _sum,
    "mean": _mean,
    "var": _var,
    "std": lambda call, *args, **kwargs: point("sqrt", _var(call, *args, **kwargs)),
    "amax": _amax,
    "amin": lambda call, *args, **kwargs: -_amax(call, -args[0], *args[1:], **kwargs),
    "native_layer_norm": _layer_norm,
    "_softmax": _softmax,
    "log_sigmoid_forward": lambda call, x: [_log_sigmoid(x), x],
    **dict.fromkeys(("zeros_like", "new_zeros", "zeros"), _filled(0.0)),
    **dict.fromkeys(("ones_like", "new_ones", "ones"), _filled(1.0)),
    "scalar_tensor": lambda call, value, **_: Value("const", (), 1, float(value)),
    "full_like": lambda call, x, value, **_: _constant(call, float(value)),
    "new_full": lambda call, x, shape, value, **_: _constant(call, float(value)),
    "full": lambda call, shape, value, **_: _constant(call, float(value)),
}
