"""The Elman and scalar-gated recurrence as CUDA kernels; see `scan.elman` for the arguments and `elman.cuh`."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow import activations
from evenflow.scan import chunked, native
from evenflow.scan.cuda import build, plan, problem
from evenflow.scan.cuda.problem import aligned, lengths, weight_gradient

# What a linear recurrence in pieces costs beyond its steps: for each piece, and once.
STEPS_PER_PIECE, STEPS_TO_BEGIN = 40, 1600

Job = native.structure(
    "Elman",
    int64="models steps batch begin end",
    double="slope",
    pointer="lengths a weight h0 alpha beta parameter states kept grad d_a d_states d_h0 sums far",
)


def missing(weight: Tensor, *tensors: Tensor | None) -> str | None:
    """Why the kernels cannot take these tensors, or None where they can."""
    return problem.missing(plan.ELMAN, weight, *tensors)


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
    a, h0 = aligned(a), aligned(h0)
    if activation == "identity" and alpha is None and batch_sizes is None and tile is None:
        pieces = _pieces(a)
        found = chunked.scan(a, weight, h0, pieces, _steps) if pieces > 1 else None
        if found is not None:
            return found, a.new_empty(0)
    fresh = torch.empty_like if batch_sizes is None else torch.zeros_like  # rows at their end are not written
    states = fresh(a)
    dtype = activations.make(activation).kept_as(alpha is not None, a.dtype)
    kept = a.new_empty(0) if dtype is None else fresh(a, dtype=dtype)
    ended = lengths(batch_sizes, a.shape[2], a)
    runs = kernels("forward", a, alpha is not None, activation, tile)
    far, given = runs[0][1].far(a, len(a)), (a, weight, h0, alpha, beta, parameter, activation, ended)
    job = _job(*given, a=a, states=states, kept=None if dtype is None else kept, far=far)
    problem.launch(runs, job, a, len(a))
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
    grad, states, kept, h0 = (aligned(each) for each in (grad, states, kept, h0))
    if activation == "identity" and alpha is None and batch_sizes is None and tile is None:
        pieces = _pieces(grad)
        start = torch.zeros_like(h0)
        back = chunked.scan(grad.flip(1), weight.mT.contiguous(), start, pieces, _steps) if pieces > 1 else None
        if back is not None:  # D_t = grad_t + D_{t+1} W is such a recurrence too, and G_t = D_t
            d_a, none = back.flip(1), states.new_empty(0)
            by_states = d_a.clone() if want_state_gradient else none
            return d_a, weight_gradient(d_a, states, h0), d_a[:, 0] @ weight, none, none, none, by_states
    fresh = torch.empty_like if batch_sizes is None else torch.zeros_like
    d_a, d_h0 = fresh(states), torch.empty_like(h0)
    d_states = fresh(states) if want_state_gradient else None
    adds_up = alpha is not None or parameter is not None
    sums = h0.new_empty(3, *h0.shape, dtype=torch.float64) if adds_up else None
    ended = lengths(batch_sizes, h0.shape[1], states)
    runs = kernels("backward", states, alpha is not None, activation, tile)
    far = runs[0][1].far(states, len(states))
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
        far=far,
    )
    problem.launch(runs, job, states, len(states))
    d_alpha, d_beta, d_parameter = (_total(sums, n, v) for n, v in enumerate((alpha, beta, parameter)))
    rest = (states.new_empty(0) if v is None else v for v in (d_alpha, d_beta, d_parameter, d_states))
    return d_a, weight_gradient(d_a, states, h0), d_h0, *rest


def _steps(a: Tensor, weight: Tensor, h0: Tensor) -> Tensor:
    """All states of a linear recurrence, one step after another."""
    states = torch.empty_like(a)
    job = _job(a, weight, h0, None, None, None, "identity", None, a=a, states=states)
    problem.launch(kernels("forward", a, False, "identity"), job, a, len(a))
    return states


def _pieces(a: Tensor) -> int:
    """Into how many pieces a linear recurrence of ``(M, T, B, H)`` is cut, to run side by side where rows are few.

    Two passes of T / p steps take the place of one of T. What the p pieces have to do one after another, and what it
    takes to begin, is counted in steps.
    """
    models, steps, batch, _ = a.shape
    if (
        models * batch * steps == 0 or torch.cuda.is_current_stream_capturing()
    ):  # it looks at a number, and waits for it
        return 1
    tile = kernel("forward", a[:, :, :1], False, "identity").tile
    rows = problem.machine(a.device).at_once(tile) * tile.rows
    count = min(rows // (models * batch), int(math.sqrt(steps / STEPS_PER_PIECE)))
    return count if count > 2 and steps > 2 * steps / count + STEPS_PER_PIECE * count + STEPS_TO_BEGIN else 1


def _total(sums: Tensor | None, n: int, like: Tensor | None) -> Tensor | None:
    """Sum n over the batch and, where a model has one number of this kind, or one for each pair, over its units."""
    if sums is None or like is None:
        return None
    by_unit = sums[n].sum(1)
    if like.numel() < by_unit.numel():
        by_unit = by_unit.unflatten(-1, (-1, like[0].numel())).sum(1)
    return by_unit.to(like.dtype).view_as(like)


def kernel(way: str, states: Tensor, gated: bool, activation: str, tile: plan.Tile | None = None) -> build.Kernel:
    """The kernel that runs `way` ("forward" or "backward") for states ``(M, T, B, H)``, or for most of their rows."""
    return kernels(way, states, gated, activation, tile)[0][1]


def kernels(way: str, states: Tensor, gated: bool, activation: str, tile: plan.Tile | None = None) -> problem.Turns:
    """Rows of the batch and the kernels that run them one after another; the plan chooses the tiles."""
    models, _, batch, hidden = states.shape
    return _kernels(way, (models, batch, hidden), states.device, gated, activation, tile)


@functools.cache
def _kernels(
    way: str,
    states: tuple[int, int, int],
    device: torch.device,
    gated: bool,
    activation: str,
    tile: plan.Tile | None,
) -> problem.Turns:
    f = activations.make(activation)
    make = functools.partial(
        build.Kernel,
        "elman",
        f"elman_{way}",
        (f.name.upper(), str(gated).lower()),
        states[-1],
        streams=1 if way == "forward" else 3 if gated else 2,
        paired=f.paired,
    )
    table = plan.GATED_BACKWARD if gated and way == "backward" else plan.ELMAN
    return tuple((rows, make(each)) for rows, each in problem.turns(table, states, device, tile))


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
