"""The GRU recurrence as one operator with a hand-written backward pass; see `elman` for the idea."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.scan import gru_native, gru_torch
from evenflow.scan.choice import choose
from evenflow.scan.cuda import gru as gru_cuda
from evenflow.scan.driven import driven
from evenflow.scan.operator import eager, known, operator
from evenflow.scan.storage import widened


def _run_forward(
    a: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    h0: Tensor,
    tap: Tensor | None,
    batch_sizes: Sequence[int] | None,
    engine: str,
) -> tuple[Tensor, Tensor]:
    """All states ``(M, T, B, H)``, and r, z, n and q = U_n h + c of every step ``(M, T, B, 4H)``. The tap is zeros.

    The weight ``(M, 3H, H)`` is the gates' U above the candidate's U_n, the bias ``(M, H)`` the candidate's c.
    """
    members = (a, weight, bias, h0)
    run = choose(engine, weight, members, gru_native, gru_cuda, gru_torch)
    return run.forward(*(None if v is None else v.contiguous() for v in members), batch_sizes)


def _run_backward(
    grad: Tensor,
    states: Tensor,
    kept: Tensor,
    weight: Tensor,
    h0: Tensor,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
    engine: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by a, weight, bias, h0 and (where wanted, else empty) every state.

    With G_t = ∂L/∂h_t and D = ∂L/∂(r, z, q) before their activations:  ``G_t = grad_t + D_{t+1} W + z_{t+1} G_{t+1}``.
    """
    members = (grad, states, kept, weight, h0)
    run = choose(engine, weight, members, gru_native, gru_cuda, gru_torch)
    return run.backward(*(v.contiguous() for v in members), batch_sizes, want_state_gradient)


_forward = widened(_run_forward, (0, 0))
_backward = widened(_run_backward, (1, 3, 3, 4, 1))


def _fake(a: Tensor, weight, bias, h0: Tensor, tap, batch_sizes, engine):  # type: ignore[no-untyped-def]
    size = h0.shape[-1]
    return a.new_empty(*a.shape[:-1], size), a.new_empty(*a.shape[:-1], 4 * size)


def _fake_backward(  # type: ignore[no-untyped-def]
    grad, states: Tensor, kept, weight, h0: Tensor, batch_sizes, want_state_gradient: bool, engine
):
    models, size = weight.shape[0], h0.shape[-1]
    d_states = torch.empty_like(states) if want_state_gradient else states.new_empty(0)
    d_a = states.new_empty(*states.shape[:-1], 3 * size)
    return d_a, torch.empty_like(weight), weight.new_empty(models, size), torch.empty_like(h0), d_states


gru_backward = operator(
    "gru_backward",
    "(Tensor grad, Tensor states, Tensor kept, Tensor weight, Tensor h0, int[]? batch_sizes, "
    "bool want_state_gradient, str engine) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)


backward = eager(gru_backward, _backward)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, weight, bias, h0, tap, *ctx.settings = inputs
    ctx.save_for_backward(*output, weight, h0)
    ctx.set_materialize_grads(False)  # the gates' gradient would be four states of zeros
    ctx.biased, ctx.tapped = bias is not None, tap is not None


def _autograd(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    states, kept, weight, h0 = ctx.saved_tensors
    batch_sizes, engine = ctx.settings
    if grad is None:
        return (None,) * 7
    d_a, d_weight, d_bias, d_h0, d_states = backward(grad, states, kept, weight, h0, batch_sizes, ctx.tapped, engine)
    return d_a, d_weight, d_bias if ctx.biased else None, d_h0, d_states if ctx.tapped else None, None, None


gru = operator(
    "gru",
    "(Tensor a, Tensor weight, Tensor? bias, Tensor h0, Tensor? tap, int[]? batch_sizes, str engine) "
    "-> (Tensor, Tensor)",
    _forward,
    _fake,
    _setup,
    _autograd,
)
scan = eager(gru, _forward, _setup, _autograd)
_known = known(_setup, _autograd)


def again(states: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    """What `scan` gives, where every state is known: the gates are found by one product."""
    a, weight, bias, h0, *_ = given
    with torch.no_grad():
        into, into_n = a.tensor_split([2 * h0.shape[-1]], -1)
        gates, q = driven(weight, h0, states).tensor_split([2 * h0.shape[-1]], -1)
        r, _ = gates.add_(into).sigmoid_().chunk(2, -1)
        if bias is not None:
            q += bias[:, None, None]
        kept = torch.cat([gates, torch.addcmul(into_n, r, q).tanh_(), q], -1)
    return _known((states, kept), *given)
