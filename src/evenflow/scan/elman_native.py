"""The Elman and scalar-gated recurrence by the compiled library; see `elman` for the arguments and `c/elman.h`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow import activations
from evenflow.scan import native
from evenflow.scan.linear import weight_gradient

# The order of the C enum.
KINDS = ("identity", "relu", "leaky", "prelu", "tanh", "abs", "oplu", "modrelu", "complex_modrelu")
Job = native.structure(
    "Elman",
    int64="models steps batch hidden threads activation",
    double="slope",
    pointer="batch_sizes a weight h0 alpha beta parameter states kept grad d_a d_states d_h0 d_alpha d_beta "
    "d_parameter sums",
)


def forward(
    a: Tensor,
    weight: Tensor,
    h0: Tensor,
    alpha: Tensor | None,
    beta: Tensor | None,
    parameter: Tensor | None,
    activation: str,
    batch_sizes: Sequence[int] | None,
) -> tuple[Tensor, Tensor]:
    states = torch.empty_like(a)
    dtype = activations.make(activation).kept_as(alpha is not None, a.dtype)
    kept = a.new_empty(0) if dtype is None else torch.empty_like(a, dtype=dtype)
    given = _given(a, weight, h0, alpha, beta, parameter, activation, batch_sizes)
    native.call("elman_forward", Job, a.dtype, **given, a=a, states=states, kept=kept if kept.numel() else None)
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
) -> tuple[Tensor, ...]:
    d_a, d_h0 = torch.empty_like(states), torch.empty_like(h0)
    d_states = torch.empty_like(states) if want_state_gradient else None
    d_alpha, d_beta, d_parameter = (None if v is None else torch.empty_like(v) for v in (alpha, beta, parameter))
    adds_up = alpha is not None or parameter is not None
    native.call(
        "elman_backward",
        Job,
        states.dtype,
        **_given(states, weight, h0, alpha, beta, parameter, activation, batch_sizes),
        states=states,
        kept=kept if kept.numel() else None,
        grad=grad,
        d_a=d_a,
        d_states=d_states,
        d_h0=d_h0,
        d_alpha=d_alpha,
        d_beta=d_beta,
        d_parameter=d_parameter,
        sums=torch.zeros(3, *h0.shape, dtype=torch.float64) if adds_up else None,
    )
    d_weight = weight_gradient(d_a, states, h0)
    rest = (states.new_empty(0) if v is None else v for v in (d_alpha, d_beta, d_parameter, d_states))
    return d_a, d_weight, d_h0, *rest


def _given(
    like: Tensor,
    weight: Tensor,
    h0: Tensor,
    alpha: Tensor | None,
    beta: Tensor | None,
    parameter: Tensor | None,
    activation: str,
    batch_sizes: Sequence[int] | None,
) -> dict[str, Tensor | float | None]:
    f = activations.make(activation)
    return native.sizes(like, batch_sizes) | {
        "activation": KINDS.index(f.name),
        "slope": getattr(f, "slope", 0.0),
        "weight": weight,
        "h0": h0,
        "alpha": alpha,
        "beta": beta,
        "parameter": parameter,
    }
