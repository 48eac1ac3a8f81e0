"""The recurrence of gated feedback as one operator with a hand-written backward pass; see `elman` for the idea.

It runs the stack with tanh, GRU and LSTM units: ``c0`` tells the last, ``own`` the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.scan import gated_feedback_torch
from evenflow.scan.choice import choose
from evenflow.scan.cuda import gated_feedback as gated_feedback_cuda
from evenflow.scan.gated_feedback_weights import Gradients
from evenflow.scan.operator import eager, operator
from evenflow.scan.storage import widened


def _run_forward(
    a: Tensor,
    factors: Tensor | None,
    feedback: Tensor,
    gate: Tensor,
    own: Tensor | None,
    up: Tensor,
    bias: Tensor | None,
    shift: Tensor | None,
    h0: Tensor,
    c0: Tensor | None,
    tap: Tensor | None,
    batch_sizes: Sequence[int] | None,
    engine: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All h and c ``(M, T, B, L H)``, the units' own gates ``(M, T, B, L 4 H)`` and the global ones ``(M, T, B, L L)``.

    Of GRU units r, z, n and q (the sum of all feedback with its shift) are kept, of LSTM units i, f, g and o, and what
    a unit has not is empty. The tap is zeros. a ``(M, T, B, blocks * H + L)`` is what the first layer sees, factors
    ``(M, T, B, (L - 1) H)`` what states are multiplied by on their way up. The weights are those of
    `cells.GatedFeedback.prepare`: feedback ``(M, L, H, L H)``, gate ``(M, L L, L H)``, own ``(M, L, 2 H or 3 H, H)``,
    and of all layers but the first up ``(M, L - 1, blocks * H + L, H)`` and bias; shift ``(M, L, H)``.
    """
    members = (a, factors, feedback, gate, own, up, bias, shift, h0, c0)
    run = choose(engine, feedback, members, gated_feedback_torch, gated_feedback_cuda, gated_feedback_torch)
    return run.forward(*(None if v is None else v.contiguous() for v in members), batch_sizes)


def _run_backward(
    grad_h: Tensor | None,
    grad_c: Tensor | None,
    h: Tensor,
    c: Tensor,
    units: Tensor,
    gates: Tensor,
    factors: Tensor | None,
    feedback: Tensor,
    gate: Tensor,
    own: Tensor | None,
    up: Tensor,
    h0: Tensor,
    c0: Tensor | None,
    batch_sizes: Sequence[int] | None,
    want_state_gradient: bool,
    engine: str,
) -> Gradients:
    """Gradients by a, the weights, h0, c0 and (where wanted) every state, empty where there is no such thing.

    With G^j = ∂L/∂h^j_t, S = ∂L/∂(what the units see), Q = ∂L/∂(the sum of all feedback) and e = ∂L/∂(what the global
    gates see), from the last layer down:  ``G^j_t = grad_t + W^{j+1} S^{j+1} + w^{j+1} e^{j+1} + (what t + 1 sends)``,
    ``e^{ij} = g (1 - g) h^i_{t-1} U^{ij} Q^j``, and h^i_{t-1} gets ``Σ_j g^{ij} U^{ij} Q^j + Σ u e``.
    """
    members = (grad_h, grad_c, h, c, units, gates, factors, feedback, gate, own, up, h0, c0)
    run = choose(engine, feedback, members, gated_feedback_torch, gated_feedback_cuda, gated_feedback_torch)
    ready = (None if v is None else v.contiguous() for v in members)
    return run.backward(*ready, batch_sizes, want_state_gradient)


_forward = widened(_run_forward, (0, 0, 0, 0))
_backward = widened(_run_backward, (2, 7, 8, 9, 10, 10, 11, 11, 12, 2))


def _fake(a: Tensor, factors, feedback, gate, own, up, bias, shift, h0: Tensor, c0, tap, batch_sizes, engine):  # type: ignore[no-untyped-def]
    h = a.new_empty(*a.shape[:-1], h0.shape[-1])
    c = a.new_empty(0) if c0 is None else torch.empty_like(h)
    units = a.new_empty(0) if own is None else a.new_empty(*a.shape[:-1], 4 * h0.shape[-1])
    return h, c, units, a.new_empty(*a.shape[:-1], gate.shape[1])


def _fake_backward(  # type: ignore[no-untyped-def]
    grad_h, grad_c, h: Tensor, c, units, gates, factors, feedback, gate, own, up, h0, c0, batch_sizes, want, engine
):
    def like(value: Tensor | None) -> Tensor:
        return h.new_empty(0) if value is None else torch.empty_like(value)

    shift = h.new_empty(len(h), *feedback.shape[1:3]) if own is not None and c0 is None else None
    weights = (like(feedback), like(gate), like(own), like(up), up.new_empty(up.shape[:-1]), like(shift))
    return h.new_empty(*h.shape[:-1], up.shape[2]), *weights, like(h0), like(c0), like(h if want else None)


gated_feedback_backward = operator(
    "gated_feedback_backward",
    "(Tensor? grad_h, Tensor? grad_c, Tensor h, Tensor c, Tensor units, Tensor gates, Tensor? factors, "
    "Tensor feedback, Tensor gate, Tensor? own, Tensor up, Tensor h0, Tensor? c0, int[]? batch_sizes, "
    f"bool want_state_gradient, str engine) -> ({', '.join(['Tensor'] * 10)})",
    _backward,
    _fake_backward,
)


backward = eager(gated_feedback_backward, _backward)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, factors, feedback, gate, own, up, bias, shift, h0, c0, tap, *ctx.settings = inputs
    ctx.save_for_backward(*output, factors, feedback, gate, own, up, h0, c0)
    ctx.set_materialize_grads(False)  # the gates' gradients would be many states of zeros
    ctx.given = tuple(value is not None for value in (own, bias, shift, c0, tap))


def _autograd(ctx: Any, grad_h: Tensor | None, grad_c: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    batch_sizes, engine = ctx.settings
    owned, biased, shifted, remembers, tapped = ctx.given
    grad_c = grad_c if remembers else None
    if grad_h is None and grad_c is None:
        return (None,) * 13
    found = backward(grad_h, grad_c, *ctx.saved_tensors, batch_sizes, tapped, engine)
    d_a, d_feedback, d_gate, d_own, d_up, d_bias, d_shift, d_h0, d_c0, d_states = found
    return (
        d_a,
        None,  # factors are drawn, not learned
        d_feedback,
        d_gate,
        d_own if owned else None,
        d_up,
        d_bias if biased else None,
        d_shift if shifted else None,
        d_h0,
        d_c0 if remembers else None,
        d_states if tapped else None,
        None,
        None,
    )


gated_feedback = operator(
    "gated_feedback",
    "(Tensor a, Tensor? factors, Tensor feedback, Tensor gate, Tensor? own, Tensor up, Tensor? bias, Tensor? shift, "
    "Tensor h0, Tensor? c0, Tensor? tap, int[]? batch_sizes, str engine) -> (Tensor, Tensor, Tensor, Tensor)",
    _forward,
    _fake,
    _setup,
    _autograd,
)
scan = eager(gated_feedback, _forward, _setup, _autograd)
