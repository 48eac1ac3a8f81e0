"""Which engine runs a recurrence, and both passes by it: from tensors to tensors, without autograd.

Engines: compiled C on a CPU (`cpu`), kernels on an NVIDIA GPU (`cuda.cuda_recurrence`), and `torch_operations` for
everything else. Half precision is only a way to store numbers: a recurrence on it runs in single precision.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.runtime.torch_state import compiled_code_allowed
from evenflow.scan import cpu, torch_operations
from evenflow.scan.compiled_step import CompiledStep, compiled_step
from evenflow.scan.cuda import cuda_recurrence as gpu
from evenflow.scan.cuda.step_kernels import unsupported
from evenflow.scan.engine import ScanInputs, ScanOutputs, scan_gradients

ENGINES = ("auto", "torch", "reference")  # that a user can ask for
# The fastest engine, with second derivatives by the incoming gradients alone: weights and states are held constant.
LINEARIZED = "linearized"
STORAGES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
HALF = tuple(STORAGES.values())


def choose(step: CompiledStep, engine: str, weight: Tensor, tensors: Sequence[Tensor]) -> Any:
    """The engine module that runs these tensors, `weight` among them.

    ``"auto"`` and ``"linearized"`` take the fastest, any other name torch operations. A warning says why a GPU has to
    do without kernels.
    """
    if engine not in ("auto", LINEARIZED) or not compiled_code_allowed():
        return torch_operations
    if cpu.runs(step, *tensors):
        return cpu
    if weight.device.type in ("cpu", "meta"):
        return torch_operations
    why = unsupported(step, weight, *tensors) if weight.is_cuda else f"there are none for {weight.device.type}"
    if why is None:
        return gpu
    if weight.numel():
        warn_slow("step by step, up to a hundred times slower than by GPU kernels", why)
    return torch_operations


def warn_slow(how: str, why: str) -> None:
    """Warn that a recurrence runs slower than it could, once per reason and process."""
    if not torch.compiler.is_compiling():  # each reason would make the compiler compile again
        _warn_once(how, why)


@functools.cache
def _warn_once(how: str, why: str) -> None:
    warnings.warn(f"evenflow runs a recurrence {how}: {why}", RuntimeWarning, stacklevel=4)


def run_forward(
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    tap: Tensor | None,
    step: str,
    batch_sizes: Sequence[int] | None,
    engine: str,
    resets: Tensor | None = None,
) -> list[Tensor]:
    """The forward pass: all states, each ``(M, T, B, size)``, then the numbers and marks that the backward pass reads.

    Args:
        a, states, matrices, batch_sizes: as in `engine.ScanInputs`.
        parameters: those that the step is called with, each ``(M, size)``.
        tap: zeros, there for their gradient alone; they are not added.
        step: the text of a program, see `step.program_text`.
        resets: ``(M, T, B)``, not zero where the states of a row restart, for a step that does so, see `step.restart`.
    """
    tensors, half = upcast([a, *states, *matrices, *parameters])
    inputs = scan_inputs(compiled_step(step), tensors, batch_sizes, resets)
    run = choose(inputs.step, engine, inputs.matrices[0] if matrices else inputs.a, tensors)
    outputs = run.forward(inputs)
    if half:
        return [*(s.to(a.dtype) for s in outputs.states), outputs.kept.to(a.dtype), outputs.marks]
    return [*outputs.states, outputs.kept, outputs.marks]


def run_backward(
    grads: Sequence[Tensor | None],
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    results: Sequence[Tensor],
    step: str,
    batch_sizes: Sequence[int] | None,
    want_tap: bool,
    engine: str,
    resets: Tensor | None = None,
) -> list[Tensor]:
    """The backward pass: gradients by a, states, matrices, parameters and, with `want_tap`, the first state per step.

    A missing gradient by a state counts as zeros; a is empty where the backward pass does not read it.
    """
    *read, marks = results
    arriving = [g for g in grads if g is not None]
    tensors, half = upcast([a, *states, *matrices, *parameters, *read, *arriving])
    first = 1 + len(states) + len(matrices) + len(parameters)
    inputs = scan_inputs(compiled_step(step), tensors[:first], batch_sizes, resets)
    *new, kept = tensors[first : first + len(read)]
    ready = iter(tensors[first + len(read) :])
    by_new = [None if g is None else next(ready) for g in grads]
    run = choose(inputs.step, engine, inputs.matrices[0] if matrices else new[0], [v for v in tensors if v.numel()])
    d_a, d_states, d_matrices, d_parameters, tap = scan_gradients(
        run, inputs, ScanOutputs(new, kept, marks), by_new, want_tap
    )
    present = [d for d in d_parameters if d is not None]
    gradients = [d_a, *d_states, *d_matrices, *present, new[0].new_empty(0) if tap is None else tap]
    if half:
        likes = [results[0], *states, *matrices, *parameters, results[0]]
        gradients = [d.to(like.dtype) for d, like in zip(gradients, likes, strict=True)]
    return gradients


def upcast(tensors: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
    """The tensors, contiguous and without half precision; and whether any was in half precision.

    Half precision becomes float32, or float64 if other tensors are in float64.
    """
    half = any(v.dtype in HALF for v in tensors)
    full = torch.float64 if any(v.dtype == torch.float64 for v in tensors) else torch.float32
    return [(v.to(full) if half and v.dtype in HALF else v).contiguous() for v in tensors], half


def scan_inputs(
    step: CompiledStep, tensors: Sequence[Tensor], batch_sizes: Sequence[int] | None, resets: Tensor | None = None
) -> ScanInputs:
    """The arguments of an engine from a, states, matrices and those parameters that the step is called with."""
    program = step.program
    first = 1 + len(program.states)
    last = first + len(program.matrices)
    present = iter(tensors[last:])
    parameters = [next(present) if nodes else None for nodes in program.parameters]
    resets = None if resets is None else resets.to(tensors[0].dtype).contiguous().unsqueeze(-1)
    return ScanInputs(step, tensors[0], tensors[1:first], tensors[first:last], parameters, batch_sizes, resets)


def split(tensors: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """Lists of as many tensors as `counts` says, then a list of the rest."""
    each = iter(tensors)
    return [*(list(itertools.islice(each, count)) for count in counts), list(each)]
