"""Traces a step: runs it once and records every operation as a `Value`.

The step runs on zeros, and on matrices without numbers on torch's ``meta`` device. It may hold Python code of any kind
(loops, functions, conditions on settings); a decision on the value of a tensor raises an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from evenflow.step.graph import View

ROWS = 2  # of the batch that the step is run with
PRODUCTS = ("mm", "addmm")


class Untranslatable(Exception):
    """A step does something that cannot be compiled.

    Args:
        what: the operation, or what is wrong with it.
        where: file and line of the step.
        instead: what would work.
    """

    def __init__(self, what: str, where: str, instead: str) -> None:
        super().__init__(f"{what} ({where}) cannot be translated; {instead}")


class NumberNeeded(ValueError):
    """A step decides on the value of a tensor, which is not known while it is traced."""


@dataclass(frozen=True, eq=False)
class Value:
    """A row of numbers that a step computes: ``size`` of them for each sequence, or the same for all sequences.

    Args:
        op: ``"leaf"``, ``"slice"``, ``"cat"``, ``"product"``, ``"reduce"``, ``"const"``, ``"detach"``, or the name of a
            pointwise operation of `graph`.
        inputs: what it is computed from.
        extra: the rest, by operation: which leaf, which offset, which view of which matrix, which reduction.
    """

    op: str
    inputs: tuple[Value, ...]
    size: int
    extra: Any = None

    def __add__(self, other: Value | float) -> Value:
        return point("add", self, other)

    def __sub__(self, other: Value | float) -> Value:
        return point("sub", self, other)

    def __mul__(self, other: Value | float) -> Value:
        return point("mul", self, other)

    def __truediv__(self, other: Value | float) -> Value:
        return point("div", self, other)

    def __neg__(self) -> Value:
        return point("neg", self)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: float) -> Value:
        return point("sub", other, self)

    def __rtruediv__(self, other: float) -> Value:
        return point("div", other, self)


def point(op: str, *inputs: Value | float) -> Value:
    """A pointwise operation; numbers become constants."""
    values = tuple(v if isinstance(v, Value) else Value("const", (), 1, float(v)) for v in inputs)
    return Value(op, values, max(v.size for v in values))


def reduced(op: str, x: Value) -> Value:
    """``"sum"`` or ``"amax"`` over the units: a number per row."""
    return Value("reduce", (x,), 1, op)


class Tracer(TorchDispatchMode):
    """Maps each tensor of the step to its `Value`, or to a `View` if it is a matrix.

    Attributes:
        refused: the first operation that cannot be translated. The rest of the step runs without being recorded: a
            decision on a number, which is an error, is found behind it as well.
    """

    def __init__(self, code: Any, operations: Mapping[str, Callable[..., Any]], pointwise: Container[str]) -> None:
        super().__init__()
        self._operations, self._pointwise = operations, pointwise  # see `operations`
        self._code = code  # of the step, to name its lines
        self.refused: Untranslatable | None = None
        self._values: dict[int, tuple[Tensor, Value | View]] = {}  # holds the tensors, so that no id is used twice

    def bind(self, tensor: Tensor, value: Value | View) -> Tensor:
        self._values[id(tensor)] = (tensor, value)
        return tensor

    def of(self, tensor: Any) -> Any:
        """The value of an operation's argument; a tensor of one number from outside the step is a constant."""
        if isinstance(tensor, list | tuple):
            return [self.of(v) for v in tensor]
        if not isinstance(tensor, Tensor):
            return tensor
        if (value := self._bound(tensor)) is not None:
            return value
        if not tensor.is_meta and tensor.numel() == 1:
            return Value("const", (), 1, float(tensor))
        raise self.error("a tensor from outside the step", "pass it in as a parameter")

    def _bound(self, tensor: Tensor) -> Value | View | None:
        bound = self._values.get(id(tensor))
        return None if bound is None else bound[1]

    def error(self, what: str, instead: str) -> Untranslatable:
        return Untranslatable(what, self.line(), instead)

    def error_line(self, error: BaseException) -> str:
        """The line of the step that raised an error."""
        trace, line = error.__traceback__, "its call"
        while trace is not None:
            if trace.tb_frame.f_code is self._code:
                line = f"line {trace.tb_lineno} of {self._code.co_filename}"
            trace = trace.tb_next
        return line

    def line(self) -> str:
        """The line of the step that runs now."""
        frame = sys._getframe()
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back  # type: ignore[assignment]
        if frame is None:
            return f"in {getattr(self._code, 'co_name', 'the step')}"
        return f"line {frame.f_lineno} of {frame.f_code.co_filename}"

    def __torch_dispatch__(self, op: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name, kwargs = op._schema.name.removeprefix("aten::"), dict(kwargs or {})
        if name in ("_local_scalar_dense", "is_nonzero", "item"):
            raise NumberNeeded(
                f"a step may not decide on a number ({self.line()}): use torch.where, which takes both sides"
            )
        if self.refused is None:
            try:
                return self._recorded(op, name, args, kwargs)
            except Untranslatable as refused:
                self.refused = refused
        matrices = any(isinstance(v, Tensor) and v.is_meta for v in args)
        return _product(*args) if matrices and name in PRODUCTS else op(*args, **kwargs)

    def _recorded(self, op: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if op._schema.is_mutable:
            raise self.error(
                f"the in-place operation {name}", f"write it without changing a tensor: {name.rstrip('_')}"
            )
        handler = self._operations.get(name)
        if handler is None:
            raise self.error(
                f"the operation {name}", "write it with arithmetic, torch.where, and functions such as tanh"
            )
        matrices = any(isinstance(v, Tensor) and isinstance(self._bound(v), View) for v in args)
        if matrices and name in self._pointwise:
            raise self.error(f"the operation {name} on a matrix", "do it once for all steps, in `prepare`")
        result = _product(*args) if matrices and name in PRODUCTS else op(*args, **kwargs)
        call = Call(self, name, result, args, kwargs)
        values = handler(call, *(self.of(v) for v in args), **{k: self.of(v) for k, v in kwargs.items()})
        if isinstance(result, Tensor):
            return self.bind(result, values)
        return [self.bind(*pair) for pair in zip(result, values, strict=True)]


def _product(*args: Tensor) -> Tensor:
    """The result of ``mm(x, W)`` or ``addmm(b, x, W)``, from the shape of W."""
    *bias, x, weight = args
    product = torch.mm(x.to("meta"), weight)
    zeros = torch.zeros(product.shape, dtype=product.dtype, device="cpu")
    return torch.add(bias[0], zeros) if bias else zeros


# Without torch's wrapper, which loads the compiler: that takes two seconds.
Tracer.__torch_dispatch__ = Tracer.__torch_dispatch__.__wrapped__  # type: ignore[attr-defined, method-assign]


@dataclass(frozen=True)
class Call:
    """One operation of a step: torch's arguments, and the result of the run on zeros."""

    tracer: Tracer
    name: str
    result: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def refuse(self, why: str, instead: str) -> Untranslatable:
        return self.tracer.error(f"{self.name} {why}", instead)

    def check_last_dim(self, dim: Any, tensor: Tensor) -> None:
        """Refuse any dimension but the last, that of units."""
        dims = [dim] if isinstance(dim, int) else list(dim or [])
        if len(dims) != 1 or dims[0] % max(1, tensor.dim()) != tensor.dim() - 1:
            raise self.refuse(f"over dimension {dim}", "use the last dimension, dim=-1")
