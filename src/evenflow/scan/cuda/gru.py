"""The GRU recurrence as CUDA kernels; see `scan.gru` for the arguments and `gru.cuh`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan import native
from evenflow.scan.cuda import build, plan, problem
from evenflow.scan.cuda.problem import lengths, weight_gradient

Job = native.structure(
    "Gru",
    int64="models steps batch begin end",
    pointer="lengths a weight bias h0 states kept grad d_a d_q d_states d_h0 far",
)


def missing(weight: Tensor, *tensors: Tensor | None) -> str | None:
    """Why the kernels cannot take these tensors, or None where they can."""
    return problem.missing(plan.GRU_FORWARD, weight, *tensors)


def forward(
    a: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    batch_sizes: Sequence[int] | None,
    *,
    tile: plan.Tile | None = None,
) -> tuple[Tensor, Tensor]:
    models, steps, batch, _ = a.shape
    size = h0.shape[-1]
    fresh = a.new_empty if batch_sizes is None else a.new_zeros  # rows at their end are not written
    states, kept = fresh(models, steps, batch, size), fresh(models, steps, batch, 4 * size)
    ended, runs = lengths(batch_sizes, batch, a), kernels("forward", states, tile)
    far = runs[0][1].far(a, models)
    job = build.filled(
        Job,
        models=models,
        steps=steps,
        batch=batch,
        lengths=ended,
        a=a,
        weight=weight,
        bias=bias,
        h0=h0,
        states=states,
        kept=kept,
        far=far,
    )
    problem.launch(runs, job, a, models)
    return states, kept


def backward(
    grad: Tensor,
    states: Tensor,
    kept: Tensor,
    weight: Tensor,
    h0: Tensor,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
    *,
    tile: plan.Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    models, steps, batch, size = states.shape
    fresh = states.new_empty if batch_sizes is None else states.new_zeros
    d_a, d_q = fresh(models, steps, batch, 3 * size), fresh(states.shape)
    d_h0 = torch.empty_like(h0)
    d_states = fresh(states.shape) if want_state_gradient else None
    ended, runs = lengths(batch_sizes, batch, states), kernels("backward", states, tile)
    far = runs[0][1].far(states, models)
    job = build.filled(
        Job,
        models=models,
        steps=steps,
        batch=batch,
        lengths=ended,
        weight=weight,
        h0=h0,
        states=states,
        kept=kept,
        grad=grad,
        d_a=d_a,
        d_q=d_q,
        d_states=d_states,
        d_h0=d_h0,
        far=far,
    )
    problem.launch(runs, job, states, models)
    gates = weight_gradient(d_a[..., : 2 * size], states, h0)
    d_weight = torch.cat([gates, weight_gradient(d_q, states, h0)], 1)
    return d_a, d_weight, d_q.sum((1, 2)), d_h0, states.new_empty(0) if d_states is None else d_states


def kernel(way: str, states: Tensor, tile: plan.Tile | None = None) -> build.Kernel:
    """The kernel that runs `way` ("forward" or "backward") for states ``(M, T, B, H)``, or for most of their rows."""
    return kernels(way, states, tile)[0][1]


def kernels(way: str, states: Tensor, tile: plan.Tile | None = None) -> problem.Turns:
    """Rows of the batch and the kernels that run them one after another; the plan chooses the tiles."""
    models, _, batch, hidden = states.shape
    return _kernels(way, (models, batch, hidden), states.device, tile)


@functools.cache
def _kernels(way: str, states: tuple[int, int, int], device: torch.device, tile: plan.Tile | None) -> problem.Turns:
    table = plan.GRU_FORWARD if way == "forward" else plan.GRU_BACKWARD
    numbers = (3, 1, 3) if way == "forward" else (1, 3, 6)  # out, in and fetched ahead
    turns = problem.turns(table, states, device, tile)
    return tuple((rows, build.Kernel("gru", f"gru_{way}", (), states[-1], each, *numbers)) for rows, each in turns)
