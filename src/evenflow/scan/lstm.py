"""The LSTM recurrence as one operator with a hand-written backward pass; see `elman` for the idea.

It runs the plain cell, the one with peepholes, and the one of 1997: three blocks (i, g, o) and no forget gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.scan import lstm_native, lstm_torch
from evenflow.scan.choice import choose
from evenflow.scan.cuda import lstm as lstm_cuda
from evenflow.scan.driven import before, driven
from evenflow.scan.operator import eager, known, operator
from evenflow.scan.storage import widened


def _run_forward(
    a: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    peephole: Tensor | None,
    tap: Tensor | None,
    truncated: bool,
    batch_sizes: Sequence[int] | None,
    engine: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """All h and c ``(M, T, B, H)`` and the gates after their activations ``(M, T, B, 4H or 3H)``. The tap is zeros.

    The peephole ``(M, 3H)`` is p_i, p_f, p_o. A truncated gradient does not pass from the gates to the state before.
    """
    members = (a, weight, h0, c0, peephole)
    run = choose(engine, weight, members, lstm_native, lstm_cuda, lstm_torch)
    return run.forward(*(None if v is None else v.contiguous() for v in members), batch_sizes)


def _run_backward(
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
    engine: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by a, weight, h0, c0, peephole and (where wanted) every h, empty where there is no such thing.

    A missing gradient counts as zeros. With G = ∂L/∂h_t and C = ∂L/∂c_t:  ``G_t = grad_t + D_{t+1} W``,
    ``C_t = grad_t + o (1 - tanh² c) G_t + f_{t+1} C_{t+1}``, and with peepholes
    ``+ p_o D^o_t + p_i D^i_{t+1} + p_f D^f_{t+1}``.
    """
    members = (grad_h, grad_c, h, c, gates, weight, h0, c0, peephole)
    run = choose(engine, weight, members, lstm_native, lstm_cuda, lstm_torch)
    ready = (None if v is None else v.contiguous() for v in members)
    return run.backward(*ready, truncated, batch_sizes, want_state_gradient)


_forward = widened(_run_forward, (0, 0, 0))
_backward = widened(_run_backward, (4, 5, 6, 7, 8, 2))


def _fake(a: Tensor, weight, h0: Tensor, c0, peephole, tap, truncated, batch_sizes, engine):  # type: ignore[no-untyped-def]
    h = a.new_empty(*a.shape[:-1], h0.shape[-1])
    return h, torch.empty_like(h), torch.empty_like(a)


def _fake_backward(  # type: ignore[no-untyped-def]
    grad_h, grad_c, h: Tensor, c, gates, weight, h0, c0, peephole, truncated, batch_sizes, want_state_gradient, engine
):
    def like(value: Tensor | None) -> Tensor:
        return h.new_empty(0) if value is None else torch.empty_like(value)

    return like(gates), like(weight), like(h0), like(c0), like(peephole), like(h if want_state_gradient else None)


lstm_backward = operator(
    "lstm_backward",
    "(Tensor? grad_h, Tensor? grad_c, Tensor h, Tensor c, Tensor gates, Tensor weight, Tensor h0, Tensor c0, "
    "Tensor? peephole, bool truncated, int[]? batch_sizes, bool want_state_gradient, str engine) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)


backward = eager(lstm_backward, _backward)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, weight, h0, c0, peephole, tap, *ctx.settings = inputs
    ctx.save_for_backward(*output, weight, h0, c0, peephole)
    ctx.set_materialize_grads(False)  # the gates' gradient would be four states of zeros
    ctx.tapped = tap is not None


def _autograd(ctx: Any, grad_h: Tensor | None, grad_c: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    truncated, batch_sizes, engine = ctx.settings
    saved = ctx.saved_tensors  # once: `torch.utils.checkpoint` gives each out a single time
    grads = backward(grad_h, grad_c, *saved, truncated, batch_sizes, ctx.tapped, engine)
    d_a, d_weight, d_h0, d_c0, d_peephole, d_h = grads
    return (
        d_a,
        d_weight,
        None if truncated else d_h0,  # None, not zeros, as autograd says of what was detached
        d_c0,
        None if saved[-1] is None else d_peephole,
        d_h if ctx.tapped else None,
        None,
        None,
        None,
    )


lstm = operator(
    "lstm",
    "(Tensor a, Tensor weight, Tensor h0, Tensor c0, Tensor? peephole, Tensor? tap, bool truncated, "
    "int[]? batch_sizes, str engine) -> (Tensor, Tensor, Tensor)",
    _forward,
    _fake,
    _setup,
    _autograd,
)
scan = eager(lstm, _forward, _setup, _autograd)
_known = known(_setup, _autograd)


def again(h: Tensor, c: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What `scan` gives, where every h and c is known: the gates are found by one product."""
    a, weight, h0, c0, peephole, *_ = given
    with torch.no_grad():
        gates, size = driven(weight, h0, h).add_(a), h0.shape[-1]
        inner, g, o = gates.split([gates.shape[-1] - 2 * size, size, size], -1)  # i and f, or i alone
        if peephole is not None:
            into, into_o = peephole[:, None, None].split([2 * size, size], -1)
            inner.addcmul_(into, before(c0, c).repeat(1, 1, 1, 2))
            o.addcmul_(into_o, c)
        inner.sigmoid_()
        g.tanh_()
        o.sigmoid_()
    return _known((h, c, gates), *given)
