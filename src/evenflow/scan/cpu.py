"""Compiled C on a CPU: the engine of a step's generated code, and two products over all steps at once.

See `engine` for the functions of an engine, `step.emit_c` for the generated code, and the folder ``scan/c`` for what it
includes. Sources are compiled at first use. Where there is no working compiler torch operations take over, and one
warning says so; ``EVENFLOW_NATIVE=0`` turns the compiled code off without a warning. Denormal numbers count as zero
inside the compiled code, in its own threads and for the length of a call in the caller's: a vanishing gradient is full
of them and each costs a hundred times a normal number.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from evenflow.runtime import compile_c
from evenflow.runtime.compile_cache import cache_folder, compile_once
from evenflow.runtime.torch_state import compiled_code_allowed
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.engine import ScanInputs, ScanOutputs, StepGradients

HEADERS = Path(__file__).parent / "c"
PRODUCTS = HEADERS / "products.c"  # needs no step: products over all steps at once
SUFFIXES = {torch.float32: "float", torch.float64: "double"}
PROCESS = os.getpid()  # which imported this file; a forked one has another number

HEADER = """#include "head.h"

struct job {
    int64_t models, steps, batch, threads;
    const int64_t *number;      /* see `emit_c.number_names` */
    const int64_t *batch_sizes; /* (T), or NULL where every row runs to the end */
    void *const *tensor;        /* see `generated_code.tensor_names` */
    int64_t *bytes;             /* where to write the size of the scratch memory, instead of running; or NULL */
    void *scratch;              /* scratch memory of the caller's, for one thread; or NULL */
    int64_t packed;             /* whether it holds the packed matrices of the call before */
};

"""
DTYPES = {
    torch.float32: "#define REAL float\n#define INTEGER int32_t\n#define SUFFIX float\n",
    torch.float64: "#define REAL double\n#define INTEGER int64_t\n#define SUFFIX double\n",
}


class StepCall(ctypes.Structure):
    """The argument of both passes, ``struct job`` of `HEADER`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("models", "steps", "batch", "threads")),
        *((name, ctypes.c_void_p) for name in ("number", "batch_sizes", "tensor", "bytes", "scratch")),
        ("packed", ctypes.c_int64),
    )


def _structure(name: str, **fields: str) -> type[ctypes.Structure]:
    """A C struct from its fields in order, each keyword a type and its names: ``int64="rows in"``, and so on."""
    types = {"int64": ctypes.c_int64, "pointer": ctypes.c_void_p}
    listed = [(field, types[kind]) for kind, names in fields.items() for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": listed})


LinearCall = _structure("LinearCall", int64="rows in out down across threads", pointer="x weight bias y")
GradientCall = _structure(
    "GradientCall", int64="models steps batch left right threads down x_down x0_down", pointer="d x0 x resets d_weight"
)


def accepts(*tensors: Tensor | None) -> bool:
    """Return True if compiled code exists and takes these tensors: all on a CPU, of one dtype it knows."""
    present = [t for t in tensors if t is not None]
    accepted = all(t.device.type == "cpu" and t.dtype in SUFFIXES and t.dtype == present[0].dtype for t in present)
    return accepted and library() is not None


@compile_once
def library(source: str | None = None) -> ctypes.CDLL | None:
    """A compiled source, by default that of the products; None, after one warning, where it cannot be compiled."""
    if not compiled_code_allowed():
        return None
    if source is not None and library() is None:  # a warning has said why
        return None
    try:
        return compile_c.load(
            PRODUCTS.read_text(encoding="utf-8") if source is None else source, HEADERS, cache_folder()
        )
    except compile_c.CompilationFailed as error:
        warnings.warn(
            f"evenflow runs its recurrences on torch operations, several times slower than its compiled ones: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def threads() -> int:
    """As many threads as torch uses; one in a forked process, in which those of OpenMP do not exist.

    A parallel region would wait for them for ever.
    """
    return torch.get_num_threads() if os.getpid() == PROCESS else 1


def run(loaded: ctypes.CDLL, function: str, job: ctypes.Structure) -> None:
    """Call a function of a library with the struct `job`."""
    if getattr(loaded, function)(ctypes.byref(job)):
        raise MemoryError(f"{function} found no memory for its threads")


def step_library(step: CompiledStep, dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled passes of a step, forward and backward."""
    if step.libraries.get(dtype) is None:
        step.libraries[dtype] = library(source(step, dtype))
    return step.libraries[dtype]


def source(step: CompiledStep, dtype: torch.dtype) -> str:
    """The C of both passes of a step."""
    included = '#include "product.h"\n#include "functions.h"\n\n'
    return HEADER + DTYPES[dtype] + included + step.forward_c + "\n" + step.backward_c


def runs(step: CompiledStep, *tensors: Tensor | None) -> bool:
    """Return True if there is compiled code of the step for these tensors."""
    present = [t for t in tensors if t is not None]
    return bool(present) and accepts(*present) and step_library(step, present[0].dtype) is not None


def forward(inputs: ScanInputs) -> ScanOutputs:
    """The forward pass, see `engine`."""
    outputs = inputs.empty_outputs()
    _call_step("forward", inputs, outputs, [])
    return outputs


def backward(inputs: ScanInputs, outputs: ScanOutputs, grads: Sequence[Tensor | None], want_tap: bool) -> StepGradients:
    """The backward pass, see `engine`."""
    gradients, added = inputs.empty_gradients(outputs, want_tap), inputs.step.added
    models, batch = inputs.states[0].shape[:2]
    sizes = [models * batch * v.width for v in added]
    sums = torch.zeros(sum(sizes), dtype=torch.float64)  # of each row over all steps
    written = [gradients.a, gradients.rest, *gradients.states, gradients.tap, sums]
    _call_step("backward", inputs, outputs, [inputs.again, *grads, *written])
    of_rows = zip(added, sums.split(sizes), strict=True)
    gradients.sums = {v: rows.view(models, batch, v.width).sum(1) for v, rows in of_rows}
    return gradients


def _call_step(function: str, inputs: ScanInputs, outputs: ScanOutputs, others: Sequence[Tensor | None]) -> None:
    like, batch_sizes = outputs.states[0], inputs.batch_sizes
    loaded = step_library(inputs.step, like.dtype)
    assert loaded is not None
    read = [inputs.a, *inputs.states, *inputs.matrices, *inputs.parameters, *inputs.reset_rows]
    tensors = [*read, *outputs.states, outputs.kept, outputs.marks, *others]
    addresses = (ctypes.c_void_p * len(tensors))(
        *(t.data_ptr() if t is not None and t.numel() else None for t in tensors)
    )
    sizes = None if batch_sizes is None else (ctypes.c_int64 * len(batch_sizes))(*batch_sizes)
    models, steps, batch = like.shape[:3]
    call = StepCall(models, steps, batch, threads())
    call.number, call.tensor = ctypes.addressof(inputs.step.number_array), ctypes.addressof(addresses)
    call.batch_sizes = None if sizes is None else ctypes.addressof(sizes)
    run(loaded, f"{function}_{SUFFIXES[like.dtype]}", call)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool = True) -> Tensor:
    """``x W' + b``, or ``x W + b``, for x ``(N, I)``."""
    x, weight, bias = x.contiguous(), weight.contiguous(), None if bias is None else bias.contiguous()
    (rows, width), out = x.shape, weight.shape[0 if transposed else 1]
    down, across = (1, width) if transposed else (out, 1)
    y = x.new_empty(rows, out)
    sizes = {"rows": rows, "in": width, "out": out, "down": down, "across": across}
    _call("linear", LinearCall, x.dtype, **sizes, x=x, weight=weight, bias=bias, y=y)
    return y


def weight_gradient(d: Tensor, x: Tensor, x0: Tensor | None, resets: Tensor | None = None) -> Tensor:
    """See `engine.scan_gradients`; d, x and x0 may be columns of wider rows."""
    models, steps, batch, left = d.shape
    right = x.shape[-1]
    out = d.new_empty(models, left, right)
    if not out.numel() or not steps * batch:
        return out.zero_()
    sizes = {"models": models, "steps": steps, "batch": batch, "left": left, "right": right}
    rows = {"down": _row(d), "x_down": _row(x), "x0_down": 0 if x0 is None else _row(x0)}
    _call("gradient", GradientCall, d.dtype, **sizes, **rows, d=d, x=x, x0=x0, resets=resets, d_weight=out)
    return out


def _call(function: str, job: type[ctypes.Structure], dtype: torch.dtype, **values: Tensor | float | None) -> None:
    """Call a function of the products with a struct of these values; tensors by address, missing ones as NULL."""
    products = library()
    assert products is not None
    filled = job(threads=threads())
    for field, value in values.items():
        if isinstance(value, Tensor):
            assert value.stride(-1) == 1 or value.shape[-1] <= 1, field
            setattr(filled, field, value.data_ptr())
        elif value is not None:
            setattr(filled, field, value)
    run(products, f"{function}_{SUFFIXES[dtype]}", filled)


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
