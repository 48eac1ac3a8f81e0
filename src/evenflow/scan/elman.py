"""The Elman and scalar-gated recurrence as one operator with a hand-written backward pass over the whole sequence.

No autograd graph is built per step, and the weight gradient is a single product over all steps at the end. The work is
done by the compiled library on a CPU, by kernels on a GPU, and in torch operations where neither is to be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from evenflow import activations
from evenflow.scan import elman_native, elman_torch
from evenflow.scan.choice import LINEARIZED, choose
from evenflow.scan.cuda import elman as elman_cuda
from evenflow.scan.driven import driven
from evenflow.scan.operator import eager, known, operator
from evenflow.scan.storage import widened


def _run_forward(
    a: Tensor,
    weight: Tensor,
    h0: Tensor,
    alpha: Tensor | None,
    beta: Tensor | None,
    parameter: Tensor | None,
    tap: Tensor | None,
    activation: str,
    batch_sizes: Sequence[int] | None,
    engine: str,
) -> tuple[Tensor, Tensor]:
    """All states ``(M, T, B, H)``, and what else the backward pass needs: `Activation.kept_as` (empty for nothing).

    The tap is zeros, there for its gradient alone, and so is not added.
    """
    members = (a, weight, h0, alpha, beta, parameter)
    run = choose(engine, weight, members, elman_native, elman_cuda, elman_torch)
    return run.forward(*(None if v is None else v.contiguous() for v in members), activation, batch_sizes)


def _run_backward(
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
    engine: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by a, weight, h0, alpha, beta, parameter and every state, each empty where there is no such thing.

    With G_t = ∂L/∂h_t and D_t = ∂L/∂a_t:  ``G_t = grad_t + D_{t+1} W + β G_{t+1}``,  ``D_t = α f'(a_t) G_t``.
    """
    members = (grad, states, kept, weight, h0, alpha, beta, parameter)
    counted = tuple(v for v in members if v is None or v.is_floating_point())  # marks are none of its numbers
    run = choose(engine, weight, counted, elman_native, elman_cuda, elman_torch)
    ready = (None if v is None else v.contiguous() for v in members)
    return run.backward(*ready, activation, batch_sizes, want_state_gradient)


_forward = widened(_run_forward, (0, 0))
_backward = widened(_run_backward, (1, 3, 4, 5, 6, 7, 1))


def _fake(a: Tensor, weight, h0, alpha, beta, parameter, tap, activation: str, batch_sizes, engine):  # type: ignore[no-untyped-def]
    dtype = activations.make(activation).kept_as(alpha is not None, a.dtype)
    return torch.empty_like(a), a.new_empty(0) if dtype is None else torch.empty_like(a, dtype=dtype)


def _fake_backward(  # type: ignore[no-untyped-def]
    grad, states: Tensor, kept, weight, h0, alpha, beta, parameter, activation, batch_sizes, want_state_gradient, engine
):
    def like(value: Tensor | None) -> Tensor:
        return states.new_empty(0) if value is None else torch.empty_like(value)

    d_states = like(states if want_state_gradient else None)
    return like(states), like(weight), like(h0), like(alpha), like(beta), like(parameter), d_states


elman_backward = operator(
    "elman_backward",
    "(Tensor grad, Tensor states, Tensor kept, Tensor weight, Tensor h0, Tensor? alpha, Tensor? beta, "
    "Tensor? parameter, str activation, int[]? batch_sizes, bool want_state_gradient, str engine) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _fake_backward,
)


backward = eager(elman_backward, _backward)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, weight, h0, alpha, beta, parameter, tap, *ctx.settings = inputs
    ctx.save_for_backward(*output, weight, h0, alpha, beta, parameter)
    ctx.set_materialize_grads(False)  # that of the pre-activations would be as many zeros
    ctx.tapped = tap is not None


def _autograd(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 10
    states, kept, weight, h0, alpha, beta, parameter = ctx.saved_tensors
    activation, batch_sizes, engine = ctx.settings
    if engine == LINEARIZED:
        held = (v.detach() for v in (states, kept, weight, h0))
        return *_Linearized.apply(grad, *held, activation, batch_sizes), *(None,) * 7
    d_a, d_weight, d_h0, d_alpha, d_beta, d_parameter, d_states = backward(
        grad, states, kept, weight, h0, alpha, beta, parameter, activation, batch_sizes, ctx.tapped, engine
    )
    return (
        d_a,
        d_weight,
        d_h0,
        None if alpha is None else d_alpha,
        None if beta is None else d_beta,
        None if parameter is None else d_parameter,
        d_states if ctx.tapped else None,
        None,
        None,
        None,
    )


class _Linearized(torch.autograd.Function):
    """The way back as a function of `grad` alone, in which it is linear; no gates, no parameter, no taps.

    Its own gradient is how small changes v of the pre-activations and V of W spread from the first step to the last:
    ``e_t = f'(a_t) (v_t + V h_{t-1} + W e_{t-1})``. That is a way back with time and W turned round, by the same code.
    """

    @staticmethod
    def forward(ctx: Any, grad: Tensor, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        *held, activation, batch_sizes = given
        ctx.save_for_backward(*held)
        ctx.settings = activation, batch_sizes
        return _backward(grad, *held, None, None, None, activation, batch_sizes, False, "auto")[:3]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v_a: Tensor, v_weight: Tensor, v_h0: Tensor) -> tuple[Tensor | None, ...]:
        states, kept, weight, h0 = ctx.saved_tensors
        activation, batch_sizes = ctx.settings
        previous = torch.cat([h0.unsqueeze(1), states[:, :-1]], 1)
        c = (previous.flatten(1, 2) @ v_weight.mT).view_as(states).add_(v_a)
        c[:, 0] += v_h0 @ weight.mT
        turned = (v.flip(1) if v.numel() else v for v in (c, states, kept))
        nothing = torch.zeros_like(h0), None, None, None
        e = _backward(*turned, weight.mT.contiguous(), *nothing, activation, None, False, "auto")[0].flip(1)
        if batch_sizes is not None:  # what went on beyond a sequence's end has changed nothing before it
            sizes = torch.tensor(batch_sizes, device=e.device).view(-1, 1)
            ended = torch.arange(e.shape[2], device=e.device) >= sizes
            e = e.masked_fill(ended.unsqueeze(-1), 0)  # it may have become infinite there
        return e, *(None,) * 6


elman = operator(
    "elman",
    "(Tensor a, Tensor weight, Tensor h0, Tensor? alpha, Tensor? beta, Tensor? parameter, Tensor? tap, "
    "str activation, int[]? batch_sizes, str engine) -> (Tensor, Tensor)",
    _forward,
    _fake,
    _setup,
    _autograd,
)
scan = eager(elman, _forward, _setup, _autograd)
_known = known(_setup, _autograd)


def again(states: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    """What `scan` gives, where every state is known: what it keeps besides them is found by one product."""
    a, weight, h0, alpha, *_, activation, _, _ = given
    f = activations.make(activation)
    dtype = f.kept_as(alpha is not None, a.dtype)
    kept = a.new_empty(0) if dtype is None else driven(weight, h0, states).add_(a.detach())
    return _known((states, f.mark(kept) if dtype == torch.int8 else kept), *given)
