"""Second derivatives of a scan: through the loop that defines it, or through the tangent of its step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.scan.backend import LINEARIZED, run_backward, run_forward, scan_inputs, split
from evenflow.scan.compiled_step import compiled_step
from evenflow.scan.engine import ScanInputs
from evenflow.step import program_text
from evenflow.step.compute import step as one_step
from evenflow.step.tangent import tangent

Again = Callable[[], Tensor]


def differentiable(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """The gradients by all inputs of a scan, as functions that torch can differentiate again."""
    step, batch_sizes, engine = ctx.settings
    kept_a, resets, *rest = ctx.saved_tensors
    states, matrices, parameters, results = split(rest, ctx.counts)
    if engine == LINEARIZED and not ctx.tapped:
        held = [v.detach() for v in (kept_a, *rest)]
        settings = (*ctx.settings, resets)
        gradients = _LinearBackward.apply(
            settings, ctx.counts, ctx.again or ctx.given_a, len(states), *grads[: len(states)], *held
        )
        d_a, *others = gradients
        return d_a, *split(others, ctx.counts)[:3], None
    a = kept_a if kept_a.dim() > 1 else ctx.given_a if ctx.again is None else ctx.again()
    with torch.enable_grad():
        # One input may be computed from another, as derived parameters are. Gradients by views leave that path out.
        a, *rest = (v.view_as(v) for v in (a, *states, *matrices, *parameters))
        states, matrices, parameters, _ = split(rest, ctx.counts)
        tap = torch.zeros_like(results[0], requires_grad=True) if ctx.tapped else None
        tensors = [a, *states, *matrices, *parameters]
        new = loop(scan_inputs(compiled_step(step), tensors, batch_sizes, resets), tap)
    paths = [(s, g) for s, g in zip(new, grads, strict=False) if g is not None and s.requires_grad]
    inputs = [a, *states, *matrices, *parameters, *([] if tap is None else [tap])]
    moving = [v for v in inputs if v.requires_grad]
    outputs, arriving = zip(*paths, strict=True) if paths else ((), ())
    gradients = torch.autograd.grad(outputs, moving, arriving, create_graph=True, allow_unused=True) if paths else []
    by_input = dict(zip(map(id, moving), gradients, strict=True))
    d_a, *others = (by_input.get(id(v)) for v in inputs)
    d_states, d_matrices, d_parameters, d_tap = split(others, ctx.counts)
    return d_a, d_states, d_matrices, d_parameters, d_tap[0] if d_tap else None


def loop(inputs: ScanInputs, tap: Tensor | None) -> list[Tensor]:
    """All states by one step after another, in operations that torch differentiates any number of times."""
    step, a = inputs.step, inputs.a
    rows, before, every = a.shape[2], list(inputs.states), []
    for t in range(a.shape[1]):
        n = rows if inputs.batch_sizes is None else inputs.batch_sizes[t]
        running = [s[:, :n] for s in before]
        resets = None if inputs.resets is None else inputs.resets[:, t, :n]
        weights = (inputs.matrices, inputs.parameters)
        new = one_step(step.program, step.forward_plan, a[:, t, :n], running, *weights, resets)
        before = list(new)
        if tap is not None:
            before[0] = before[0] + tap[:, t, :n]
        every.append([torch.nn.functional.pad(s, (0, 0, 0, rows - n)) for s in before])
    return [torch.stack(member, 1) for member in zip(*every, strict=True)]


class _LinearBackward(torch.autograd.Function):
    """The backward pass as a function of the incoming gradients, in which it is linear; all else is held constant.

    Its gradient is the jvp of the scan: how small changes of a, the weights and the first states spread from the first
    step to the last. It is computed by a scan of the step's `tangent`.
    """

    @staticmethod
    def forward(ctx: Any, settings: Any, counts: Any, a: Again | Tensor, states: int, *tensors: Tensor | None) -> Any:
        grads, (kept_a, *rest) = tensors[:states], tensors[states:]
        ctx.settings, ctx.counts, ctx.a, ctx.states = settings, counts, a, states
        ctx.save_for_backward(*rest)
        step, batch_sizes, _, resets = settings
        assert kept_a is not None
        states_before, matrices, parameters, results = split(rest, counts)
        held = (kept_a, states_before, matrices, parameters, results)
        gradients = run_backward(list(grads), *held, step, batch_sizes, False, "auto", resets)
        return tuple(gradients[:-1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *moves: Tensor | None) -> Any:
        step, batch_sizes, _, resets = ctx.settings
        rest = ctx.saved_tensors
        states, matrices, parameters, _ = split(rest, ctx.counts)
        a = ctx.a() if callable(ctx.a) else ctx.a
        held = [a, *states, *matrices, *parameters]
        moved = [torch.zeros_like(v) if m is None else m for v, m in zip(held, moves, strict=True)]
        d_a, *others = moved
        d_states, d_matrices, d_parameters, _ = split(others, ctx.counts)
        moved_states = run_forward(
            torch.cat([a, d_a], -1),
            [*states, *d_states],
            [*matrices, *d_matrices],
            [*parameters, *d_parameters],
            None,
            _tangent(step),
            batch_sizes,
            "auto",
            resets,
        )
        needed = ctx.needs_input_grad[4:]
        pairs = zip(moved_states[len(states) : 2 * len(states)], needed, strict=False)
        tangents = [s if need else None for s, need in pairs]
        return None, None, None, None, *tangents, *(None,) * (1 + len(rest))


@functools.lru_cache(256)
def _tangent(step: str) -> str:
    return program_text.write(tangent(compiled_step(step).program))
