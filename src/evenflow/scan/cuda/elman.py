"""The Elman and scalar-gated recurrence as CUDA kernels; see `scan.elman` for the arguments and `elman.cuh`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow import activations
from evenflow.scan import native
from evenflow.scan.cuda import build, plan, problem
from evenflow.scan.cuda.problem import fits, lengths, weight_gradient

Job = native.structure(
    "Elman",
    int64="models steps batch",
    double="slope",
    pointer="lengths a weight h0 alpha beta parameter states kept grad d_a d_states d_h0 sums",
)


def runs(weight: Tensor, *tensors: Tensor | None) -> bool:
    """Whether the kernels can take these tensors."""
    return fits(plan.ELMAN, weight, *tensors)


def forward(
    a: Tensor,
    weight: Tensor,
    h0: Tensor,
    alpha: Tensor | None,
    beta: Tensor | None,
    parameter: Tensor | None,
    activation: str,
    batch_sizes: Sequence[int] | None,
    *,
    tile: plan.Tile | None = None,
) -> tuple[Tensor, Tensor]:
    fresh = torch.empty_like if batch_sizes is None else torch.zeros_like  # rows at their end are not written
    states = fresh(a)
    keeps = alpha is not None or not activations.make(activation).reads_output
    kept = fresh(a) if keeps else a.new_empty(0)
    ended = lengths(batch_sizes, a.shape[2], a)
    job = _job(
        a, weight, h0, alpha, beta, parameter, activation, ended, a=a, states=states, kept=kept if keeps else None
    )
    build.launch(kernel("forward", a, alpha is not None, activation, tile), job, a, a.shape[0], a.shape[2])
    return states, kept


def backward(
    grad: Tensor,
    states: Tensor,
    kept: Tensor,
    weight: Tensor,
    h0: Tensor,
    alpha: Tensor | None,
    beta: Tensor | None,
    parameter: Tensor | None,
    activation: str,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
    *,
    tile: plan.Tile | None = None,
) -> tuple[Tensor, ...]:
    fresh = torch.empty_like if batch_sizes is None else torch.zeros_like
    d_a, d_h0 = fresh(states), torch.empty_like(h0)
    d_states = fresh(states) if want_state_gradient else None
    adds_up = alpha is not None or parameter is not None
    sums = h0.new_empty(3, *h0.shape, dtype=torch.float64) if adds_up else None
    ended = lengths(batch_sizes, h0.shape[1], states)
    job = _job(
        states,
        weight,
        h0,
        alpha,
        beta,
        parameter,
        activation,
        ended,
        states=states,
        kept=kept if kept.numel() else None,
        grad=grad,
        d_a=d_a,
        d_states=d_states,
        d_h0=d_h0,
        sums=sums,
    )
    build.launch(kernel("backward", states, alpha is not None, activation, tile), job, states, *h0.shape[:2])
    d_alpha, d_beta, d_parameter = (_total(sums, n, v) for n, v in enumerate((alpha, beta, parameter)))
    rest = (states.new_empty(0) if v is None else v for v in (d_alpha, d_beta, d_parameter, d_states))
    return d_a, weight_gradient(d_a, states, h0), d_h0, *rest


def _total(sums: Tensor | None, n: int, like: Tensor | None) -> Tensor | None:
    """Sum n over the batch and, where a model has one number of this kind, over its units."""
    if sums is None or like is None:
        return None
    over = (1, 2) if like[0].numel() == 1 else 1
    return sums[n].sum(over).to(like.dtype).view_as(like)


def kernel(way: str, states: Tensor, gated: bool, activation: str, tile: plan.Tile | None = None) -> build.Kernel:
    """The kernel that runs `way` ("forward" or "backward") for states ``(M, T, B, H)``; the plan chooses the tile."""
    hidden = states.shape[-1]
    f = activations.make(activation)
    return build.Kernel(
        "elman",
        f"elman_{way}",
        (f.name.upper(), str(gated).lower()),
        hidden,
        tile or problem.tile(plan.ELMAN, states),
        streams=1 if way == "forward" else 3 if gated else 2,
        paired=f.name == "oplu",
    )


def _job(
    like: Tensor,
    weight: Tensor,
    h0: Tensor,
    alpha: Tensor | None,
    beta: Tensor | None,
    parameter: Tensor | None,
    activation: str,
    ended: Tensor | None,
    **rest: Tensor | None,
) -> ctypes.Structure:
    models, steps, batch, _ = like.shape
    return build.filled(
        Job,
        models=models,
        steps=steps,
        batch=batch,
        slope=getattr(activations.make(activation), "slope", 0.0),
        lengths=ended,
        weight=weight,
        h0=h0,
        alpha=alpha,
        beta=beta,
        parameter=parameter,
        **rest,
    )
