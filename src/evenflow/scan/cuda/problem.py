"""What the Python sides of the kernels share: which problems fit, ragged rows, and the weight gemm."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.runtime import compile_cuda as build
from evenflow.scan.cuda import capacity, gemm
from evenflow.scan.cuda import launch_plan as plan
from evenflow.scan.weight_gradient import summed

Turns = Sequence[tuple[int, Any]]  # rows of the batch, and what runs them
ALIGNMENT = 16  # bytes that a thread moves at once, at most
OLDEST, CLUSTERS = (7, 0), (9, 0)  # compute capabilities: the oldest tried for, and the first with clusters


def unable(weight: Tensor, *tensors: Tensor | None) -> str | None:
    """Why no kernel can take these tensors, or None where their sizes decide."""
    given = [t for t in (weight, *tensors) if t is not None]
    if torch.version.cuda is None or not all(t.is_cuda and t.device == weight.device for t in given):
        return "not all of its numbers are on one NVIDIA GPU"
    # An output that was not kept is empty, and its dtype is the state's.
    if other := next((t.dtype for t in given if t.dtype != torch.float32), None):
        return f"the kernels compute in torch.float32, not {other}"
    if weight.numel() == 0:
        return "there is nothing to do"
    if torch.cuda.get_device_capability(weight.device) < OLDEST:
        return "the GPU is older than compute capability {}.{}".format(*OLDEST)
    return build.missing(weight.device.index)


def choices(
    shapes: plan.Shapes, streams: int, hidden: int, batch: int, models: int, device: torch.device
) -> tuple[tuple[int, plan.Choice], ...]:
    """Rows and their tiles by the plan for this GPU, or for an H200 where it is none."""
    return plan.choices(shapes, streams, hidden, batch, models, machine(device))


def launch(turns: Turns, job: ctypes.Structure, like: Tensor, models: int) -> None:
    """Run a job's rows, some after others where there are several turns."""
    if job.lengths:  # rows that end early make room for others, in one launch
        turns = ((sum(rows for rows, _ in turns), turns[0][1]),)
    begin = 0
    for rows, kernel in turns:
        job.begin, job.end = begin, begin + rows
        build.launch(kernel, job, like, models, rows)
        begin += rows


@functools.cache
def machine(device: torch.device) -> plan.Machine:
    """What this GPU runs at once; what an H200 does where it is none."""
    if device.type != "cuda":
        return plan.H200
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    if torch.cuda.get_device_capability(device) < CLUSTERS:
        return plan.Machine(processors, {})
    found = {size: capacity.clusters_at_once(size, device.index) for size in plan.CLUSTERS}
    return plan.Machine(processors, {size: count for size, count in found.items() if count})


def lengths(batch_sizes: Sequence[int] | None, batch: int, like: Tensor) -> Tensor | None:
    """Steps of each row, longest first, from the rows of each step; None when all run to the end."""
    if batch_sizes is None:
        return None
    rising = torch.tensor(batch_sizes).flip(0)
    ended = torch.searchsorted(rising, torch.arange(batch), right=True)
    return (len(batch_sizes) - ended).to(torch.int32).to(like.device)


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy where it does not begin at a multiple of 16 bytes, as a part of another may not."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def weight_gradient(d: Tensor, x: Tensor, x0: Tensor) -> Tensor:
    """``Σ_t d_t' x_{t-1}`` with x_{-1} = x0: one large product.

    Shapes:
        d: ``(M, T, B, L)``; x: ``(M, T, B, R)``; x0: ``(M, B, R)``; result ``(M, L, R)``.
    """
    if gemm.runs(d, x, d.shape[1] * d.shape[2]):
        return gemm.product(d.flatten(1, 2), x.flatten(1, 2), x0)
    first, left, right = d[:, 0].mT, d[:, 1:].flatten(1, 2), x[:, :-1].flatten(1, 2)
    if len(d) == 1:
        return torch.addmm(first[0] @ x0[0], left[0].mT, right[0]).unsqueeze(0)
    return summed(left, right).baddbmm_(first, x0)
