"""Gated feedback as CUDA kernels; see `scan.gated_feedback` for the arguments and `gated_feedback.cuh`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan import native
from evenflow.scan.cuda import build, libraries, problem
from evenflow.scan.cuda.stack import MOST_LAYERS, Stack, choose, clusters
from evenflow.scan.gated_feedback_weights import Gradients, gradients

Job = native.structure(
    "GatedFeedback",
    int64="models steps batch begin end",
    pointer="lengths a factors feedback gate own up bias shift h0 c0 h c units gates "
    "grad_h grad_c fed d d_h d_h0 d_c0 far",
)


def missing(feedback: Tensor, *tensors: Tensor | None) -> str | None:
    """Why the kernels cannot take these tensors, or None where they can."""
    if why := problem.unable(feedback, *tensors):
        return why
    machine, (layers, hidden) = problem.machine(feedback.device), feedback.shape[1:3]
    if not machine.clusters:
        return "gated feedback needs a GPU with clusters of blocks, compute capability 9.0"
    if layers > MOST_LAYERS:
        return f"the kernels of gated feedback go up to {MOST_LAYERS} layers, not {layers}"
    up = [t for t in tensors if t is not None and t.dim() == 4][-1]  # of both ways the last with four dimensions
    shares = (up.shape[2] - layers) // hidden
    if any(chosen(way, hidden, layers, shares, True, 1, feedback.device) is None for way in ("forward", "backward")):
        return f"{layers} layers of {hidden} units are too much for a cluster of this GPU"
    return None


def chosen(
    way: str, hidden: int, layers: int, shares: int, dropped: bool, rows: int, device: torch.device
) -> Stack | None:
    """The cheapest stack on this GPU, or on an H200 where it is none."""
    room = (libraries.block_bytes(device.index),) if device.type == "cuda" else ()
    return choose(hidden, layers, shares, way, dropped, rows, clusters(problem.machine(device)), *room)


def forward(
    a: Tensor,
    factors: Tensor | None,
    feedback: Tensor,
    gate: Tensor,
    own: Tensor | None,
    up: Tensor,
    bias: Tensor | None,
    shift: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    batch_sizes: Sequence[int] | None,
    *,
    stack: Stack | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    models, steps, batch, _ = a.shape
    L, H = feedback.shape[1:3]
    fresh = a.new_empty if batch_sizes is None else a.new_zeros  # rows at their end are not written
    h, gates = fresh(models, steps, batch, L * H), fresh(models, steps, batch, L * L)
    c = a.new_empty(0) if c0 is None else fresh(h.shape)
    units = a.new_empty(0) if own is None else fresh(models, steps, batch, 4 * L * H)
    stack = stack or chosen("forward", H, L, _shares(own, c0), factors is not None, models * batch, a.device)
    assert stack is not None
    ended, far = problem.lengths(batch_sizes, batch, a), a.new_empty(models * stack.far)
    job = build.filled(
        Job,
        models=models,
        steps=steps,
        batch=batch,
        end=batch,
        lengths=ended,
        a=a,
        factors=factors,
        feedback=feedback,
        gate=gate,
        own=own,
        up=up,
        bias=bias,
        shift=shift,
        h0=h0,
        c0=c0,
        h=h,
        c=c,
        units=units,
        gates=gates,
        far=far,
    )
    build.launch(stack, job, a, models, batch)
    return h, c, units, gates


def backward(
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    h: Tensor,
    c: Tensor,
    units: Tensor,
    gates: Tensor,
    factors: Tensor | None,
    feedback: Tensor,
    gate: Tensor,
    own: Tensor | None,
    up: Tensor,
    h0: Tensor,
    c0: Tensor | None,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
    *,
    stack: Stack | None = None,
) -> Gradients:
    models, steps, batch, _ = h.shape
    L, H = feedback.shape[1:3]
    fresh = h.new_empty if batch_sizes is None else h.new_zeros
    d = fresh(models, steps, batch, L, up.shape[2])
    d_h = fresh(h.shape) if want_state_gradient else None
    d_h0, d_c0 = torch.empty_like(h0), h.new_empty(0) if c0 is None else torch.empty_like(c0)
    # What each layer gets of each one step before, for all steps at once: less work than to keep it.
    before = torch.cat([h0.unsqueeze(1), h[:, :-1]], 1).view(models, steps * batch, L, H)
    fed = before.transpose(1, 2) @ feedback  # (M, L, T B, L H)
    stack = stack or chosen("backward", H, L, _shares(own, c0), factors is not None, models * batch, h.device)
    assert stack is not None
    ended, far = problem.lengths(batch_sizes, batch, h), h.new_empty(models * stack.far)
    job = build.filled(
        Job,
        models=models,
        steps=steps,
        batch=batch,
        end=batch,
        lengths=ended,
        factors=factors,
        feedback=feedback,
        gate=gate,
        own=own,
        up=up,
        h0=h0,
        c0=c0,
        h=h,
        c=c,
        units=units,
        gates=gates,
        grad_h=grad_h,
        grad_c=grad_c,
        fed=fed,
        d=d,
        d_h=d_h,
        d_h0=d_h0,
        d_c0=d_c0,
        far=far,
    )
    build.launch(stack, job, h, models, batch)
    none = h.new_empty(0)
    return (
        *gradients(d, h, units, gates, factors, h0, own is not None),
        d_h0,
        d_c0,
        none if d_h is None else d_h,
    )


def _shares(own: Tensor | None, c0: Tensor | None) -> int:
    return 1 if own is None else 3 if c0 is None else 4
