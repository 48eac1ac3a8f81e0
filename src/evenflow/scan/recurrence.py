"""The recurrence of any cell as one operator of torch, with a backward pass over the whole sequence.

No autograd graph is built for each step: the step's own gradient runs from the last step to the first, and weight
gradients are products over all steps at the end. Compiled code does the work on a CPU, kernels do on a GPU, and torch
operations where there is neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.runtime.torch_state import is_batched_gradient, plain_tensors
from evenflow.scan.compiled_step import compiled_step
from evenflow.scan.passes import run_backward, run_forward, split
from evenflow.scan.register_operator import one_by_one, operator, without_autocast
from evenflow.scan.second_order import Again, differentiable


def _fake(a: Tensor, states, matrices, parameters, tap, step: str, batch_sizes, engine) -> list[Tensor]:  # type: ignore[no-untyped-def]
    made, lead = compiled_step(step), a.shape[:-1]
    new = [a.new_empty(*lead, size) for size in made.state_sizes]
    return [*new, a.new_empty(*lead, made.kept_size), a.new_empty(*lead, made.marks_size, dtype=torch.int8)]


def _fake_backward(  # type: ignore[no-untyped-def]
    grads, a: Tensor, states, matrices, parameters, results, step: str, batch_sizes, want_tap: bool, engine
) -> list[Tensor]:
    made, like = compiled_step(step), results[0]
    d_a = like.new_empty(*like.shape[:-1], sum(v.width for v in made.program.a))
    rest = [torch.empty_like(v, memory_format=torch.contiguous_format) for v in (*states, *matrices, *parameters)]
    return [d_a, *rest, torch.empty_like(like) if want_tap else like.new_empty(0)]


recurrence_backward = operator(
    "recurrence_backward",
    "(Tensor?[] grads, Tensor a, Tensor[] states, Tensor[] matrices, Tensor[] parameters, Tensor[] results, str step, "
    "int[]? batch_sizes, bool want_tap, str engine) -> Tensor[]",
    run_backward,
    _fake_backward,
)


def _backward(*given: Any) -> list[Tensor]:
    tensors = [v for each in given for v in (each if isinstance(each, list | tuple) else [each])]
    if not torch.is_grad_enabled() and plain_tensors(tensors):
        return run_backward(*given)
    if not torch.compiler.is_compiling() and any(map(is_batched_gradient, given[0])):
        return one_by_one(lambda grads: run_backward(grads, *given[1:]), given[0])
    return recurrence_backward(*given)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    a, states, matrices, parameters, tap, step, batch_sizes, engine = inputs
    ctx.settings, ctx.tapped = (step, batch_sizes, engine), tap is not None
    ctx.counts = (len(states), len(matrices), len(parameters))
    kept_a = a if compiled_step(step).reads_a else a.new_empty(0)
    ctx.save_for_backward(kept_a, *states, *matrices, *parameters, *output)
    ctx.set_materialize_grads(False)  # gradients by the stored numbers would be as many zeros


def _autograd(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    step, batch_sizes, engine = ctx.settings
    a, *rest = ctx.saved_tensors  # once: `torch.utils.checkpoint` gives each out a single time
    states, matrices, parameters, results = split(rest, ctx.counts)
    by_new = list(grads[: len(states)])
    if all(g is None for g in by_new):
        return None, [None] * len(states), [None] * len(matrices), [None] * len(parameters), *(None,) * 4
    found = _backward(by_new, a, states, matrices, parameters, results, step, batch_sizes, ctx.tapped, engine)
    d_a, *others = found
    d_states, d_matrices, d_parameters, (tap,) = split(others, ctx.counts)
    # None, not zeros, as autograd says of what was detached.
    moves = compiled_step(step).places.state_moves
    d_states = [d if moves(i) else None for i, d in enumerate(d_states)]
    return d_a, d_states, d_matrices, d_parameters, tap if ctx.tapped else None, None, None, None


recurrence = operator(
    "recurrence",
    "(Tensor a, Tensor[] states, Tensor[] matrices, Tensor[] parameters, Tensor? tap, str step, int[]? batch_sizes, "
    "str engine) -> Tensor[]",
    run_forward,
    _fake,
    _setup,
    _autograd,
)


class _Direct(torch.autograd.Function):
    """The operator for plain tensors, without the time that torch takes to find it; its gradient has one of its own."""

    @staticmethod
    def forward(
        ctx: Any, settings: tuple[Any, ...], counts: Any, again: Again | None, results: Any, *tensors: Tensor
    ) -> Any:
        tap, a, *rest = tensors
        states, matrices, parameters, _ = split(rest, counts)
        given = (a, states, matrices, parameters, tap, *settings)
        found = run_forward(*given) if results is None else [r.detach() for r in results]
        _setup(ctx, given, found)
        ctx.again = again
        if again is None and ctx.needs_input_grad[5]:
            ctx.given_a = a
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            d_a, d_states, d_matrices, d_parameters, tap = differentiable(ctx, grads)
        else:
            d_a, d_states, d_matrices, d_parameters, tap, *_ = without_autocast(_autograd)(ctx, grads)
        return None, None, None, None, tap, d_a, *d_states, *d_matrices, *d_parameters


def scan(
    step: str,
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    tap: Tensor | None = None,
    batch_sizes: Sequence[int] | None = None,
    engine: str = "auto",
    again: Again | None = None,
    results: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """What the operator gives, without its price where nobody but autograd follows.

    Args:
        again: makes a once more, for second derivatives; without it a itself is held.
        results: what it gives, where that is known: nothing runs until the backward pass.
    """
    tensors = [v for v in (tap, a, *states, *matrices, *parameters) if v is not None]
    settings = (step, batch_sizes, engine)
    if results is None and not plain_tensors(tensors):
        return recurrence(a, list(states), list(matrices), list(parameters), tap, *settings)
    counts = (len(states), len(matrices), len(parameters))
    return list(_Direct.apply(settings, counts, again, results, tap, a, *states, *matrices, *parameters))
