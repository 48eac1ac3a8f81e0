"""The kernels of a step for a batch, the reasons why a GPU has none, and the weights in the order kernels read them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.runtime import compile_cuda
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.cuda.gpu_capacity import GpuCapacity, gpu_capacity
from evenflow.scan.cuda.kernels import RecurrenceKernel
from evenflow.scan.cuda.launch_plan import StepTile, plan_launches
from evenflow.scan.cuda.tile import ProductShape
from evenflow.step.compute import part
from evenflow.step.emit_cuda import CudaBackward, CudaDirection, CudaForward, CudaStage
from evenflow.step.trace import Untranslatable

OLDEST = (7, 0)  # the oldest compute capability that the kernels are written for
Waves = Sequence[tuple[int, RecurrenceKernel]]  # rows of the batch and their kernel, launched one after another


def unsupported(step: CompiledStep, weight: Tensor, *tensors: Tensor | None) -> str | None:
    """Why the kernels cannot take these tensors, or None where they can."""
    present = [t for t in (weight, *tensors) if t is not None]
    if torch.version.cuda is None or not all(t.is_cuda and t.device == weight.device for t in present):
        return "not all of its numbers are on one NVIDIA GPU"
    # An output that was not stored is empty, and its dtype is the state's.
    if other := next((t.dtype for t in present if t.dtype != torch.float32), None):
        return f"the kernels compute in torch.float32, not {other}"
    if weight.numel() == 0:
        return "there is nothing to do"
    if torch.cuda.get_device_capability(weight.device) < OLDEST:
        return "the GPU is older than compute capability {}.{}".format(*OLDEST)
    if reason := compile_cuda.unavailable(weight.device.index):
        return reason
    if weight.device not in step.without_kernels:
        step.without_kernels[weight.device] = unsupported_step(step, weight.device)
    return step.without_kernels[weight.device]


def unsupported_step(step: CompiledStep, device: torch.device) -> str | None:
    """Why no kernel of this GPU runs the step, or None where one does."""
    try:
        directions = [direction(step, backward) for backward in (False, True)]
    except Untranslatable as reason:
        return str(reason)
    gpu = gpu_capacity(device)
    if all(_planned(d, 1, 1, gpu) for d in directions):
        return None
    return f"on this GPU no kernel of this cell runs {directions[0].width} units"


def direction(step: CompiledStep, backward: bool) -> CudaDirection:
    """The generated code of the forward or the backward pass."""
    if backward not in step.directions:
        step.directions[backward] = (CudaBackward if backward else CudaForward)(step.places)
    return step.directions[backward]


def shapes_of(direction: CudaDirection) -> tuple[ProductShape, ...]:
    """The shapes of a pass's products; a step without a product has a tile too, which shares out its threads."""
    shapes = (ProductShape(len(s.outputs), 0 if s.product is None else len(s.inputs)) for s in direction.stages)
    return tuple(shapes) or (ProductShape(1, 0),)


def _planned(code: CudaDirection, batch: int, models: int, gpu: GpuCapacity) -> tuple[tuple[int, StepTile], ...]:
    parameters = len(code.read_parameters)
    return plan_launches(shapes_of(code), code.stream_count, code.width, batch, models, gpu, parameters)


def kernels(step: CompiledStep, backward: bool, models: int, batch: int, device: torch.device) -> Waves:
    """The kernels for a batch, each with its number of rows, to be launched one after another."""
    key = (backward, models, batch, device)
    if key not in step.kernels:
        code = direction(step, backward)
        shapes, streams, width = shapes_of(code), code.stream_count, code.width
        planned = _planned(code, batch, models, gpu_capacity(device))
        settings = ("backward" if backward else "forward", code.text, width)
        step.kernels[key] = tuple((rows, RecurrenceKernel(*settings, t, shapes, streams)) for rows, t in planned)
    return step.kernels[key]


def stage_weights(direction: CudaDirection, stage: CudaStage, matrices: Sequence[Tensor]) -> Tensor:
    """The weights of a stage as its forward product reads them, ``(M, OUT * n, IN * n)`` with every block n wide.

    Blocks of fewer units are padded with zeros; those of one number per row are left out.
    """
    assert stage.product is not None
    product = direction.program.products[stage.product]
    parts = [part(matrices[view.matrix], view) for view in product.views]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, -2)
    rows = _padded(whole, [v.width for out in product.outputs for v in out], direction.width, -2)
    return _padded(rows, [v.width for v in product.inputs], direction.width, -1).contiguous()


def _padded(matrix: Tensor, widths: Sequence[int], n: int, dim: int) -> Tensor:
    """Each block of rows or columns as wide as n, without those of one."""
    if all(width == n for width in widths):
        return matrix
    blocks = []
    for block, width in zip(matrix.split(list(widths), dim), widths, strict=True):
        if width > 1:
            shape = list(block.shape)
            shape[dim] = n - width
            blocks += [block, block.new_zeros(shape)] if width < n else [block]
    return torch.cat(blocks, dim)


def vectors(direction: CudaDirection, matrices: Sequence[Tensor]) -> Tensor | None:
    """The rows and columns of matrices that a pass uses like parameters, ``(M, vectors, n)``; None without any.

    Those of fewer than n numbers are padded with any.
    """
    by_matrix = direction.vectors_by_matrix
    if not by_matrix:
        return None
    parts = []
    for number, entries in by_matrix.items():
        matrix = matrices[number]
        if (number, matrix.device) not in direction.entries_on:
            direction.entries_on[number, matrix.device] = torch.tensor(entries, device=matrix.device)
        parts.append(matrix.flatten(1).index_select(1, direction.entries_on[number, matrix.device]))
    return torch.cat(parts, 1).unflatten(1, (-1, direction.width))
