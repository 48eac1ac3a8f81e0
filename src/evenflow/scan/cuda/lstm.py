"""The LSTM recurrence as CUDA kernels; see `scan.lstm` for the arguments and `lstm.cuh`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan import native
from evenflow.scan.cuda import build, plan, problem
from evenflow.scan.cuda.problem import lengths, weight_gradient

Job = native.structure(
    "Lstm",
    int64="models steps batch begin end",
    pointer="lengths a weight h0 c0 peephole h c gates grad_h grad_c d_a d_h d_h0 d_c0 far",
)


def missing(weight: Tensor, *tensors: Tensor | None) -> str | None:
    """Why the kernels cannot take these tensors, or None where they can."""
    return problem.missing(plan.LSTM_FORWARD, weight, *tensors)


def forward(
    a: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    peephole: Tensor | None,
    batch_sizes: Sequence[int] | None,
    *,
    tile: plan.Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    models, steps, batch, wide = a.shape
    size = h0.shape[-1]
    fresh = a.new_empty if batch_sizes is None else a.new_zeros  # rows at their end are not written
    hs, cs, gates = fresh(models, steps, batch, size), fresh(models, steps, batch, size), fresh(a.shape)
    ended = lengths(batch_sizes, batch, a)
    runs = kernels("forward", hs, wide // size, peephole is not None, False, tile)
    far = runs[0][1].far(a, models)
    job = build.filled(
        Job,
        models=models,
        steps=steps,
        batch=batch,
        lengths=ended,
        a=a,
        weight=weight,
        h0=h0,
        c0=c0,
        peephole=peephole,
        h=hs,
        c=cs,
        gates=gates,
        far=far,
    )
    problem.launch(runs, job, a, models)
    return hs, cs, gates


def backward(
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    hs: Tensor,
    cs: Tensor,
    gates: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    peephole: Tensor | None,
    truncated: bool,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
    *,
    tile: plan.Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    models, steps, batch, size = hs.shape
    fresh = torch.empty_like if batch_sizes is None else torch.zeros_like
    d_a, d_h0, d_c0 = fresh(gates), torch.empty_like(h0), torch.empty_like(c0)
    d_h = fresh(hs) if want_state_gradient else None
    ended = lengths(batch_sizes, batch, hs)
    runs = kernels("backward", hs, gates.shape[-1] // size, peephole is not None, truncated, tile)
    far = runs[0][1].far(hs, models)
    job = build.filled(
        Job,
        models=models,
        steps=steps,
        batch=batch,
        lengths=ended,
        weight=weight,
        h0=h0,
        c0=c0,
        peephole=peephole,
        c=cs,
        gates=gates,
        grad_h=grad_h,
        grad_c=grad_c,
        d_a=d_a,
        d_h=d_h,
        d_h0=d_h0,
        d_c0=d_c0,
        far=far,
    )
    problem.launch(runs, job, hs, models)
    d_peephole = hs.new_empty(0) if peephole is None else _peephole_gradient(d_a, cs, c0)
    none = hs.new_empty(0)
    return d_a, weight_gradient(d_a, hs, h0), d_h0, d_c0, d_peephole, none if d_h is None else d_h


def _peephole_gradient(d_a: Tensor, cs: Tensor, c0: Tensor) -> Tensor:
    d_i, d_f, _, d_o = d_a.chunk(4, -1)
    by_before = [(d[:, 1:] * cs[:, :-1]).sum((1, 2)) + (d[:, 0] * c0).sum(1) for d in (d_i, d_f)]
    return torch.cat([*by_before, (d_o * cs).sum((1, 2))], -1)


def kernel(
    way: str, states: Tensor, gates: int, peephole: bool, truncated: bool, tile: plan.Tile | None = None
) -> build.Kernel:
    """The kernel that runs `way` ("forward" or "backward") for states ``(M, T, B, H)``, or for most of their rows."""
    return kernels(way, states, gates, peephole, truncated, tile)[0][1]


def kernels(
    way: str, states: Tensor, gates: int, peephole: bool, truncated: bool, tile: plan.Tile | None = None
) -> problem.Turns:
    """Rows of the batch and the kernels that run them one after another; the plan chooses the tiles."""
    models, _, batch, hidden = states.shape
    return _kernels(way, (models, batch, hidden), states.device, gates, peephole, truncated, tile)


@functools.cache
def _kernels(
    way: str,
    states: tuple[int, int, int],
    device: torch.device,
    gates: int,
    peephole: bool,
    truncated: bool,
    tile: plan.Tile | None,
) -> problem.Turns:
    forward = way == "forward"
    table = plan.LSTM_FORWARD if forward else plan.LSTM_BACKWARD
    arguments = (_word(peephole),) if forward else (_word(peephole), _word(truncated))
    numbers = (gates, 1, gates) if forward else (1, gates, gates + 3)  # out, in and fetched ahead
    turns = problem.turns(table, states, device, tile)
    return tuple((n, build.Kernel("lstm", f"lstm_{way}", arguments, states[-1], t, *numbers)) for n, t in turns)


def _word(value: bool) -> str:
    return str(value).lower()
