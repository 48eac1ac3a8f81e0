"""The engine of compiled code on a CPU; see `engine` for its functions and `step.emit_c` for the code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan import c_library
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.engine import ScanInputs, ScanOutputs, StepGradients

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
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("models", "steps", "batch", "threads")),
        *((name, ctypes.c_void_p) for name in ("number", "batch_sizes", "tensor", "bytes", "scratch")),
        ("packed", ctypes.c_int64),
    )


GradientCall = c_library.structure(
    "GradientCall", int64="models steps batch left right threads down x_down x0_down", pointer="d x0 x d_weight"
)


def library(step: CompiledStep, dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled passes of a step, forward and backward."""
    if step.libraries.get(dtype) is None:
        step.libraries[dtype] = c_library.library(source(step, dtype))
    return step.libraries[dtype]


def source(step: CompiledStep, dtype: torch.dtype) -> str:
    included = '#include "product.h"\n#include "functions.h"\n\n'
    return HEADER + DTYPES[dtype] + included + step.forward_c + "\n" + step.backward_c


def runs(step: CompiledStep, *tensors: Tensor | None) -> bool:
    """Whether there is compiled code of the step for these tensors."""
    present = [t for t in tensors if t is not None]
    return c_library.runs(*present) and library(step, present[0].dtype) is not None


def forward(inputs: ScanInputs) -> ScanOutputs:
    outputs = inputs.empty_outputs()
    _call("forward", inputs, outputs, [])
    return outputs


def backward(inputs: ScanInputs, outputs: ScanOutputs, grads: Sequence[Tensor | None], want_tap: bool) -> StepGradients:
    gradients, added = inputs.empty_gradients(outputs, want_tap), inputs.step.added
    models, batch = inputs.states[0].shape[:2]
    sizes = [models * batch * v.width for v in added]
    sums = torch.zeros(sum(sizes), dtype=torch.float64)  # of each row over all steps
    written = [gradients.a, gradients.rest, *gradients.states, gradients.tap, sums]
    _call("backward", inputs, outputs, [*grads, *written])
    of_rows = zip(added, sums.split(sizes), strict=True)
    gradients.sums = {v: rows.view(models, batch, v.width).sum(1) for v, rows in of_rows}
    return gradients


def _call(function: str, inputs: ScanInputs, outputs: ScanOutputs, others: Sequence[Tensor | None]) -> None:
    like, batch_sizes = outputs.states[0], inputs.batch_sizes
    loaded = library(inputs.step, like.dtype)
    assert loaded is not None
    read = [inputs.a, *inputs.states, *inputs.matrices, *inputs.parameters]
    tensors = [*read, *outputs.states, outputs.kept, outputs.marks, *others]
    addresses = (ctypes.c_void_p * len(tensors))(
        *(t.data_ptr() if t is not None and t.numel() else None for t in tensors)
    )
    sizes = None if batch_sizes is None else (ctypes.c_int64 * len(batch_sizes))(*batch_sizes)
    models, steps, batch = like.shape[:3]
    call = StepCall(models, steps, batch, torch.get_num_threads())
    call.number, call.tensor = ctypes.addressof(inputs.step.number_array), ctypes.addressof(addresses)
    call.batch_sizes = None if sizes is None else ctypes.addressof(sizes)
    c_library.run(loaded, f"{function}_{c_library.SUFFIXES[like.dtype]}", call)


def weight_gradient(d: Tensor, x: Tensor, x0: Tensor | None) -> Tensor:
    """See `engine.scan_gradients`; d, x and x0 may be columns of wider rows."""
    models, steps, batch, left = d.shape
    right = x.shape[-1]
    out = d.new_empty(models, left, right)
    if not out.numel() or not steps * batch:
        return out.zero_()
    sizes = {"models": models, "steps": steps, "batch": batch, "left": left, "right": right}
    rows = {"down": _row(d), "x_down": _row(x), "x0_down": 0 if x0 is None else _row(x0)}
    c_library.call("gradient", GradientCall, d.dtype, **sizes, **rows, d=d, x=x, x0=x0, d_weight=out)
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
