"""The GRU recurrence by the compiled library; see `gru` for the arguments and `c/gru.h`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan import native
from evenflow.scan.linear import weight_gradient

Job = native.structure(
    "Gru",
    int64="models steps batch hidden threads",
    pointer="batch_sizes a weight bias h0 states kept grad d_a d_q d_states d_h0",
)


def forward(
    a: Tensor, weight: Tensor, bias: Tensor | None, h0: Tensor, batch_sizes: Sequence[int] | None
) -> tuple[Tensor, Tensor]:
    size = h0.shape[-1]
    states, kept = a.new_empty(*a.shape[:-1], size), a.new_empty(*a.shape[:-1], 4 * size)
    sizes = native.sizes(states, batch_sizes)
    native.call("gru_forward", Job, a.dtype, **sizes, a=a, weight=weight, bias=bias, h0=h0, states=states, kept=kept)
    return states, kept


def backward(
    grad: Tensor,
    states: Tensor,
    kept: Tensor,
    weight: Tensor,
    h0: Tensor,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    size = h0.shape[-1]
    d_a, d_q = states.new_empty(*states.shape[:-1], 3 * size), torch.empty_like(states)
    d_h0 = torch.empty_like(h0)
    d_states = torch.empty_like(states) if want_state_gradient else None
    native.call(
        "gru_backward",
        Job,
        states.dtype,
        **native.sizes(states, batch_sizes),
        weight=weight,
        h0=h0,
        states=states,
        kept=kept,
        grad=grad,
        d_a=d_a,
        d_q=d_q,
        d_states=d_states,
        d_h0=d_h0,
    )
    d_gates = weight_gradient(d_a, states, h0, 2 * size)
    d_weight = torch.cat([d_gates, weight_gradient(d_q, states, h0)], 1)
    return d_a, d_weight, d_q.sum((1, 2)), d_h0, states.new_empty(0) if d_states is None else d_states
