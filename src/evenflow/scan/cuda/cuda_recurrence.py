"""The engine of CUDA kernels; see `engine` for its functions and `step.emit_cuda` for the code."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from evenflow.runtime import compile_cuda
from evenflow.scan import chunked
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.cuda import gemm
from evenflow.scan.cuda.gpu_capacity import gpu_capacity
from evenflow.scan.cuda.launch_plan import plan_launches
from evenflow.scan.cuda.step_kernels import Waves, direction, kernels, stage_weights, vectors
from evenflow.scan.cuda.tile import ProductShape
from evenflow.scan.engine import ScanInputs, ScanOutputs, StepGradients
from evenflow.scan.weight_gradient import summed, without_restarts

ALIGNMENT = 16  # bytes that a thread moves at once, at most
# What a linear recurrence in pieces costs beyond its steps: for each piece, and once.
STEPS_PER_PIECE, STEPS_TO_BEGIN = 40, 1600


def forward(inputs: ScanInputs) -> ScanOutputs:
    """The forward pass, see `engine`; a linear recurrence of few rows runs in pieces side by side."""
    inputs = replace(inputs, a=aligned(inputs.a), states=[aligned(v) for v in inputs.states])
    step, a = inputs.step, inputs.a
    if step.is_linear and inputs.batch_sizes is None and (pieces := _pieces(a)) > 1:
        outputs = chunked.forward(inputs, pieces, functools.partial(_linear_scan, step))
        if outputs is not None:
            return outputs
    outputs = inputs.empty_outputs()
    read = [a, *inputs.states, *inputs.parameters, *inputs.reset_rows]
    _launch(inputs, False, a, [*read, *outputs.states, outputs.kept, outputs.marks])
    return outputs


def backward(inputs: ScanInputs, outputs: ScanOutputs, grads: Sequence[Tensor | None], want_tap: bool) -> StepGradients:
    """The backward pass, see `engine`."""
    step, grads = inputs.step, [None if g is None else aligned(g) for g in grads]
    if step.is_linear and inputs.batch_sizes is None and grads[0] is not None and (pieces := _pieces(grads[0])) > 1:
        linear = chunked.backward(inputs, grads[0], want_tap, pieces, functools.partial(_linear_scan, step))
        if linear is not None:
            return linear
    gradients, (models, batch) = inputs.empty_gradients(outputs, want_tap), inputs.states[0].shape[:2]
    shape = len(step.added), models, batch, direction(step, True).width
    sums = outputs.states[0].new_empty(shape, dtype=torch.float64)  # of each row over all steps
    read = map(aligned, (inputs.a, *inputs.states))
    written = (gradients.a, gradients.rest, *gradients.states, gradients.tap, sums)
    stored = [*map(aligned, (*outputs.states, outputs.kept, outputs.marks)), inputs.again]
    _launch(inputs, True, outputs.states[0], [*read, *inputs.parameters, *inputs.reset_rows, *stored, *grads, *written])
    gradients.sums = {v: s.sum(1)[:, : v.width] for v, s in zip(step.added, sums, strict=True)}
    return gradients


def _launch(inputs: ScanInputs, backward: bool, like: Tensor, tensors: Sequence[Tensor | None]) -> None:
    """Launch the kernels of one pass.

    Args:
        like: a tensor ``(M, T, B, size)``.
        tensors: as `CudaDirection.tensors` lists them, without parts of matrices.
    """
    models, steps, batch = like.shape[:3]
    code, waves = direction(inputs.step, backward), kernels(inputs.step, backward, models, batch, like.device)
    weights = (stage_weights(code, stage, inputs.matrices) for stage in code.stages if stage.product is not None)
    rows = vectors(code, inputs.matrices)
    arguments = [*tensors, *([] if rows is None else [rows]), *weights]
    row_lengths, global_weights = lengths(inputs.batch_sizes, batch, like), waves[0][1].global_weights(like, models)
    job = job_type(len(arguments))(models=models, steps=steps, batch=batch)
    job.lengths = None if row_lengths is None else row_lengths.data_ptr()
    job.global_weights = None if global_weights is None else global_weights.data_ptr()
    for n, tensor in enumerate(arguments):
        job.tensor[n] = tensor.data_ptr() if tensor is not None and tensor.numel() else None
    launch_waves(waves, job, like, models)


def launch_waves(waves: Waves, job: ctypes.Structure, like: Tensor, models: int) -> None:
    """Launch the kernels, each for its rows of the batch; ragged rows in one launch, where rows that end make room."""
    if job.lengths:
        waves = ((sum(rows for rows, _ in waves), waves[0][1]),)
    begin = 0
    for rows, kernel in waves:
        job.begin, job.end = begin, begin + rows
        compile_cuda.launch(kernel, job, like, models, rows)
        begin += rows


@functools.cache
def job_type(tensors: int) -> type[ctypes.Structure]:
    """The struct of a kernel with so many tensors; its fields are those of `CudaDirection.text`."""
    numbers = [(name, ctypes.c_int64) for name in ("models", "steps", "batch", "begin", "end")]
    pointers = [
        ("lengths", ctypes.c_void_p),
        ("global_weights", ctypes.c_void_p),
        ("tensor", ctypes.c_void_p * tensors),
    ]
    return type("RecurrenceJob", (ctypes.Structure,), {"_fields_": [*numbers, *pointers]})


def lengths(batch_sizes: Sequence[int] | None, batch: int, like: Tensor) -> Tensor | None:
    """Steps of each row, longest first, from the rows of each step; None when all rows run to the last step."""
    if batch_sizes is None:
        return None
    rising = torch.tensor(batch_sizes).flip(0)
    ended = torch.searchsorted(rising, torch.arange(batch), right=True)
    return (len(batch_sizes) - ended).to(torch.int32).to(like.device)


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where its address is no multiple of 16 bytes, which a view's need not be."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def weight_gradient(d: Tensor, x: Tensor, x0: Tensor | None, resets: Tensor | None = None) -> Tensor:
    """See `engine.scan_gradients`: one large product."""
    x, x0 = without_restarts(x, x0, resets)
    if x0 is None:
        return summed(d.flatten(1, 2), x.flatten(1, 2))
    if gemm.runs(d, x, d.shape[1] * d.shape[2]):
        return gemm.product(d.flatten(1, 2), x.flatten(1, 2), x0)
    first, left, right = d[:, 0].mT, d[:, 1:].flatten(1, 2), x[:, :-1].flatten(1, 2)
    if len(d) == 1:
        return torch.addmm(first[0] @ x0[0], left[0].mT, right[0]).unsqueeze(0)
    return summed(left, right).baddbmm_(first, x0)


def _linear_scan(step: CompiledStep, a: Tensor, weight: Tensor, h0: Tensor) -> Tensor:
    """All states of a linear recurrence, one step after another."""
    states, empty = torch.empty_like(a), a.new_empty(0)
    inputs = ScanInputs(step, a, [h0], [weight], [None for _ in step.program.parameters])
    _launch(inputs, False, a, [a, h0, *inputs.parameters, states, empty, empty])
    return states


def _pieces(a: Tensor) -> int:
    """Into how many pieces a linear recurrence of ``(M, T, B, H)`` is cut, to run side by side where rows are few.

    Two passes of T / p steps take the place of one pass of T steps. What the p pieces cost one after another, and what
    the start costs, is counted in steps.
    """
    models, steps, batch, hidden = a.shape
    if models * batch * steps == 0 or not a.is_cuda:
        return 1
    if torch.cuda.is_current_stream_capturing():  # a chunked scan reads numbers back from the GPU
        return 1
    gpu = gpu_capacity(a.device)
    (_, step_tile), *_ = plan_launches((ProductShape(1, 1),), 1, hidden, batch, models, gpu)
    rows = gpu.tiles_at_once(step_tile.tile) * step_tile.tile.rows
    count = min(rows // (models * batch), int(math.sqrt(steps / STEPS_PER_PIECE)))
    return count if count > 2 and steps > 2 * steps / count + STEPS_PER_PIECE * count + STEPS_TO_BEGIN else 1
