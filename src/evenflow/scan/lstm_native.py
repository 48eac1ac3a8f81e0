"""The LSTM recurrence by the compiled library; see `lstm` for the arguments and `c/lstm.h`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan import native
from evenflow.scan.linear import weight_gradient

Job = native.structure(
    "Lstm",
    int64="models steps batch hidden threads blocks truncated",
    pointer="batch_sizes a weight h0 c0 peephole h c gates grad_h grad_c d_a d_states d_h0 d_c0 sums",
)


def forward(
    a: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, peephole: Tensor | None, batch_sizes: Sequence[int] | None
) -> tuple[Tensor, Tensor, Tensor]:
    h = a.new_empty(*a.shape[:-1], h0.shape[-1])
    c, gates = torch.empty_like(h), torch.empty_like(a)
    given = _given(h, weight, h0, c0, peephole, batch_sizes)
    native.call("lstm_forward", Job, a.dtype, **given, a=a, h=h, c=c, gates=gates)
    return h, c, gates


def backward(
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    h: Tensor,
    c: Tensor,
    gates: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    peephole: Tensor | None,
    truncated: bool,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_a, d_h0, d_c0 = torch.empty_like(gates), torch.empty_like(h0), torch.empty_like(c0)
    d_states = torch.empty_like(h) if want_state_gradient else None
    models, batch, size = h0.shape
    sums = None if peephole is None else torch.zeros(models, batch, 3 * size, dtype=torch.float64)
    native.call(
        "lstm_backward",
        Job,
        h.dtype,
        **_given(h, weight, h0, c0, peephole, batch_sizes),
        truncated=truncated,
        h=h,
        c=c,
        gates=gates,
        grad_h=grad_h,
        grad_c=grad_c,
        d_a=d_a,
        d_states=d_states,
        d_h0=d_h0,
        d_c0=d_c0,
        sums=sums,
    )
    d_peephole = h.new_empty(0) if sums is None else sums.sum(1).to(h.dtype)
    d_weight = weight_gradient(d_a, h, h0)
    return d_a, d_weight, d_h0, d_c0, d_peephole, h.new_empty(0) if d_states is None else d_states


def _given(
    h: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, peephole: Tensor | None, batch_sizes: Sequence[int] | None
) -> dict[str, Tensor | float | None]:
    tensors = {"weight": weight, "h0": h0, "c0": c0, "peephole": peephole}
    return native.sizes(h, batch_sizes) | tensors | {"blocks": weight.shape[1] // h.shape[-1]}
