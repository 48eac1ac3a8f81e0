"""A recurrence by compiled code on a CPU; see `recurrence` for the arguments and `step.emit_c` for the code."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.runtime import compile_c as native
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.linear import weight_gradient
from evenflow.scan.weights import matrix_gradients, parameter_gradients

HEADER = """#include "head.h"

struct job {
    int64_t models, steps, batch, threads;
    const int64_t *number;      /* see `emit_c.number_names` */
    const int64_t *batch_sizes; /* (T), or NULL where every row runs to the end */
    void *const *tensor;        /* see `emit_c.tensor_names` */
};

"""
DTYPES = {
    torch.float32: "#define REAL float\n#define INTEGER int32_t\n#define SUFFIX float\n",
    torch.float64: "#define REAL double\n#define INTEGER int64_t\n#define SUFFIX double\n",
}


class StepCall(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("models", "steps", "batch", "threads")),
        *((name, ctypes.c_void_p) for name in ("number", "batch_sizes", "tensor")),
    )


def library(step: CompiledStep, dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled passes of a step, forward and backward."""
    if step.libraries.get(dtype) is None:
        step.libraries[dtype] = native.library(source(step, dtype))
    return step.libraries[dtype]


def source(step: CompiledStep, dtype: torch.dtype) -> str:
    included = '#include "product.h"\n#include "functions.h"\n\n'
    return HEADER + DTYPES[dtype] + included + step.forward_c + "\n" + step.backward_c


def runs(step: CompiledStep, *tensors: Tensor | None) -> bool:
    """Whether compiled code can take these tensors, and exists."""
    given = [t for t in tensors if t is not None]
    return native.runs(*given) and library(step, given[0].dtype) is not None


def forward(
    step: CompiledStep,
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor | None],
    batch_sizes: Sequence[int] | None,
) -> tuple[list[Tensor], Tensor, Tensor]:
    fresh = a.new_empty if batch_sizes is None else a.new_zeros  # rows at their end are not written
    new = [fresh(*a.shape[:-1], size) for size in step.state_sizes]
    kept = fresh(*a.shape[:-1], step.kept_size)
    marks = fresh(*a.shape[:-1], step.marks_size, dtype=torch.int8)
    _call(step, "forward", a, batch_sizes, [a, *states, *matrices, *parameters, *new, kept, marks])
    return new, kept, marks


def backward(
    step: CompiledStep,
    grads: Sequence[Tensor | None],
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor | None],
    new: Sequence[Tensor],
    kept: Tensor,
    marks: Tensor,
    batch_sizes: Sequence[int] | None,
    want_tap: bool,
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor | None], Tensor | None]:
    fresh = new[0].new_empty if batch_sizes is None else new[0].new_zeros
    lead = new[0].shape[:-1]
    d_a, d_rest = fresh(*lead, step.a_size), fresh(*lead, step.rest_size)
    d_states = [torch.empty_like(s) for s in states]
    tap = fresh(new[0].shape) if want_tap else None
    added = step.added
    widths = [v.width for v in added]
    sums = torch.zeros(sum(widths) * states[0][..., 0].numel(), dtype=torch.float64)
    tensors = [a, *states, *matrices, *parameters, *new, kept, marks, *grads, d_a, d_rest, *d_states, tap, sums]
    _call(step, "backward", new[0], batch_sizes, tensors)
    models, batch = states[0].shape[:2]
    pieces = sums.split([w * models * batch for w in widths])
    totals = {v: p.view(models, batch, v.width).sum(1) for v, p in zip(added, pieces, strict=True)}
    d_matrices = matrix_gradients(step, d_a, d_rest, a, states, new, kept, matrices, weight_gradient)
    return d_a, d_states, d_matrices, parameter_gradients(step, totals, d_a, d_rest, parameters), tap


def _call(
    step: CompiledStep,
    function: str,
    like: Tensor,
    batch_sizes: Sequence[int] | None,
    tensors: Sequence[Tensor | None],
) -> None:
    loaded = library(step, like.dtype)
    assert loaded is not None
    addresses = (ctypes.c_void_p * len(tensors))(
        *(t.data_ptr() if t is not None and t.numel() else None for t in tensors)
    )
    sizes = None if batch_sizes is None else (ctypes.c_int64 * len(batch_sizes))(*batch_sizes)
    models, steps, batch = like.shape[:3]
    job = StepCall(models, steps, batch, torch.get_num_threads())
    job.number, job.tensor = ctypes.addressof(step.number_array), ctypes.addressof(addresses)
    job.batch_sizes = None if sizes is None else ctypes.addressof(sizes)
    native.run(loaded, f"{function}_{native.SUFFIXES[like.dtype]}", job)
