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
    int64="models steps batch",
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
    run = kernel("forward", hs, wide // size, peephole is not None, False, tile)
    far = run.far(a, models)
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
    build.launch(run, job, a, models, batch)
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
    run = kernel("backward", hs, gates.shape[-1] // size, peephole is not None, truncated, tile)
    far = run.far(hs, models)
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
    build.launch(run, job, hs, models, batch)
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
    """The kernel that runs `way` ("forward" or "backward") for states ``(M, T, B, H)``; the plan chooses the tile."""
    models, _, batch, hidden = states.shape
    return _kernel(way, hidden, batch, models, states.device, gates, peephole, truncated, tile)


@functools.cache
def _kernel(
    way: str,
    hidden: int,
    batch: int,
    models: int,
    device: torch.device,
    gates: int,
    peephole: bool,
    truncated: bool,
    tile: plan.Tile | None,
) -> build.Kernel:
    table = plan.LSTM_FORWARD if way == "forward" else plan.LSTM_BACKWARD
    tile = tile or problem.tile(table, hidden, batch, models, device)
    if way == "forward":
        return build.Kernel("lstm", "lstm_forward", (_word(peephole),), hidden, tile, gates, 1, gates)
    arguments = (_word(peephole), _word(truncated))
    return build.Kernel("lstm", "lstm_backward", arguments, hidden, tile, 1, gates, gates + 3)


def _word(value: bool) -> str:
    return str(value).lower()
