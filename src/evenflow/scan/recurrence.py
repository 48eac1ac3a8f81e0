"""Runs a cell over time: `scan`, on top of one operator of torch for the recurrences of all cells.

The step is translated once. Its gradient then runs from the last step to the first, and weight gradients are products
over all steps at the end: no autograd graph is built for each step. Where that is not possible, `reference.scan` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from evenflow.cells import Cell, State, Weights
from evenflow.runtime.torch_state import (
    compiled_code_allowed,
    has_nonreverse_transform,
    is_batched_gradient,
    plain_tensors,
    without_autocast,
    without_tracing,
)
from evenflow.scan import reference
from evenflow.scan.backend import run_backward, run_forward, scan_inputs, split, warn_slow
from evenflow.scan.compiled_step import compiled_step
from evenflow.scan.cuda.cuda_recurrence import STEPS_TO_BEGIN
from evenflow.scan.derived_parameters import with_derived
from evenflow.scan.register_operator import one_by_one, operator
from evenflow.scan.second_order import Again, differentiable
from evenflow.scan.torch_operations import outputs_from_states
from evenflow.step import Untranslatable
from evenflow.step.program_text import NOTHING_DERIVED


def scan(
    cell: Cell,
    a: Tensor,
    state: State,
    weights: Weights,
    batch_sizes: Sequence[int] | None = None,
    tap: Tensor | None = None,
    engine: str = "auto",
    storage: torch.dtype | None = None,
    computed_states: State | None = None,
    again: Callable[[], Tensor] | None = None,
    resets: Tensor | None = None,
    learned: bool = False,
) -> tuple[Tensor, ...]:
    """Every state of `cell` over the steps of `a`; shapes and arguments as in `reference.scan`.

    Args:
        engine: one of `backend.ENGINES`, or `backend.LINEARIZED`.
        storage: the dtype in which the states, and what else the backward pass reads of every step, are saved.
        computed_states: every state, if they were computed before: the forward pass does not run again.
        again: computes a once more; with it a is not held in memory for second derivatives.
        resets, learned: where the states restart, and from what, see `reference.scan`.

    It runs in the dtype of its recurrent weights, autocast or not: errors of half precision would accumulate.
    """
    matrices = [weights[name] for name in cell.recurrent]
    parameters = [weights.get(name) for name in cell.parameters]
    dtype = next(w for w in (*matrices, *parameters, *weights.values()) if w is not None).dtype
    with nullcontext() if a.is_meta else torch.autocast(a.device.type, enabled=False):
        a, state = a.to(storage or dtype), tuple(s.to(dtype) for s in state)
        if engine != "reference" and not a.is_meta:
            step, why = program(cell, a, state, matrices, parameters)
            if step is not None:
                present = [p.unsqueeze(0) for p in parameters if p is not None]
                if not step.endswith(NOTHING_DERIVED):
                    present = with_derived(step, present)
                if resets is not None:
                    step = _restarting(step, learned)
                    present += [weights[f"{name}0"].unsqueeze(0) for name in cell.states] if learned else []
                several = fused_scan(
                    step,
                    a.unsqueeze(0),
                    [s.unsqueeze(0) for s in state],
                    [w.unsqueeze(0) for w in matrices],
                    present,
                    None if tap is None else tap.unsqueeze(0),
                    batch_sizes,
                    engine,
                    None if again is None else lambda: again().to(storage or dtype).unsqueeze(0),
                    None if computed_states is None else [s.unsqueeze(0) for s in computed_states],
                    None if resets is None else resets.to(dtype).unsqueeze(0),  # converted once for both passes
                )
                # `squeeze`, whose gradient is a view; that of an index would be zeros of the same size, and a copy.
                return tuple(s.squeeze(0) for s in several[: len(state)])
            warn_slow("in its plain loop, many times slower than by a fused scan", why)
        states = reference.scan(cell, a.to(dtype), state, weights, batch_sizes, tap, resets, learned)
        return states if storage is None else tuple(s.to(storage) for s in states)


def program(
    cell: Cell, a: Tensor, state: State, matrices: Sequence[Tensor], parameters: Sequence[Tensor | None]
) -> tuple[str | None, str]:
    """The text of a cell's step, or None and why the cell runs in the plain loop."""
    if has_nonreverse_transform():
        return None, "a fused scan has a gradient for a backward pass alone, none for torch.func and forward mode"

    def find() -> str | Untranslatable:
        shapes = tuple((m.shape[-2], m.shape[-1]) for m in matrices)
        widths = tuple(None if p is None else p.shape[-1] for p in parameters)
        sizes = (a.shape[-1], tuple(s.shape[-1] for s in state), shapes, widths)
        return cell.programs.get(sizes) or cell.translate(sizes)

    step = without_tracing(find)
    return (None, f"of {cell.name}, {step}") if isinstance(step, Untranslatable) else (step, "")


def _restarting(step: str, learned: bool) -> str:
    """The text of the same step with restarts."""
    return compiled_step(step).from_learned if learned else compiled_step(step).from_zero


# As `torch.compiler.assume_constant_result` does, which would load the compiler: the text is a constant to it.
_restarting._dynamo_marked_constant = True  # type: ignore[attr-defined]


def can_capture(cell: Cell, steps: int) -> bool:
    """Whether a CUDA graph can capture the scan: not in the plain loop, nor a long linear scan, see `chunked`."""
    programs = cell.programs.values()
    if not compiled_code_allowed() or any(isinstance(step, Untranslatable) for step in programs):
        return False
    return steps <= STEPS_TO_BEGIN or not any(compiled_step(str(step)).is_linear for step in programs)


def _fake(  # type: ignore[no-untyped-def]
    a: Tensor, states, matrices, parameters, tap, step: str, batch_sizes, engine, resets
) -> list[Tensor]:
    translated, lead = compiled_step(step), a.shape[:-1]
    new = [a.new_empty(*lead, size) for size in translated.state_sizes]
    return [*new, a.new_empty(*lead, translated.kept_size), a.new_empty(*lead, translated.marks_size, dtype=torch.int8)]


def _fake_backward(  # type: ignore[no-untyped-def]
    grads, a: Tensor, states, matrices, parameters, results, step: str, batch_sizes, want_tap: bool, engine, resets
) -> list[Tensor]:
    like = results[0]
    d_a = like.new_empty(*like.shape[:-1], compiled_step(step).a_size)
    rest = [torch.empty_like(v, memory_format=torch.contiguous_format) for v in (*states, *matrices, *parameters)]
    return [d_a, *rest, torch.empty_like(like) if want_tap else like.new_empty(0)]


recurrence_backward = operator(
    "recurrence_backward",
    "(Tensor?[] grads, Tensor a, Tensor[] states, Tensor[] matrices, Tensor[] parameters, Tensor[] results, str step, "
    "int[]? batch_sizes, bool want_tap, str engine, Tensor? resets) -> Tensor[]",
    run_backward,
    _fake_backward,
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    a, states, matrices, parameters, tap, step, batch_sizes, engine, resets = inputs
    ctx.settings, ctx.tapped = (step, batch_sizes, engine), tap is not None
    ctx.counts = (len(states), len(matrices), len(parameters))
    read_a = a if compiled_step(step).reads_a else a.new_empty(0)
    ctx.save_for_backward(read_a, resets, *states, *matrices, *parameters, *output)
    ctx.set_materialize_grads(False)  # gradients by the saved numbers would be zeros of their size


@without_autocast
def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    step, batch_sizes, engine = ctx.settings
    a, resets, *rest = ctx.saved_tensors  # read once: `torch.utils.checkpoint` returns each tensor a single time
    states, matrices, parameters, results = split(rest, ctx.counts)
    by_new = list(grads[: len(states)])
    if all(g is None for g in by_new):
        return None, [None] * len(states), [None] * len(matrices), [None] * len(parameters), *(None,) * 5
    saved = (a, states, matrices, parameters, results, step, batch_sizes, ctx.tapped, engine, resets)
    if not torch.is_grad_enabled() and plain_tensors([*(g for g in by_new if g is not None), a, *rest]):
        gradients = run_backward(by_new, *saved)
    elif not torch.compiler.is_compiling() and any(map(is_batched_gradient, by_new)):
        gradients = one_by_one(lambda grads: run_backward(grads, *saved), by_new)
    else:
        gradients = recurrence_backward(by_new, *saved)
    d_a, *others = gradients
    d_states, d_matrices, d_parameters, (tap,) = split(others, ctx.counts)
    # None instead of zeros for a detached state, as autograd has it.
    d_states = [d if moves else None for d, moves in zip(d_states, compiled_step(step).state_moves, strict=True)]
    return d_a, d_states, d_matrices, d_parameters, tap if ctx.tapped else None, *(None,) * 4


recurrence = operator(
    "recurrence",
    "(Tensor a, Tensor[] states, Tensor[] matrices, Tensor[] parameters, Tensor? tap, str step, int[]? batch_sizes, "
    "str engine, Tensor? resets) -> Tensor[]",
    run_forward,
    _fake,
    _save,
    _backward,
)


class _FusedScan(torch.autograd.Function):
    """The operator for plain tensors; unlike the operator's, its gradient can be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: tuple[Any, ...],
        counts: Any,
        again: Again | None,
        results: Any,
        tap: Any,
        resets: Any,
        *tensors: Tensor,
    ) -> Any:
        a, *rest = tensors
        inputs = (a, *split(rest, counts)[:3], tap, *settings, resets)
        outputs = run_forward(*inputs) if results is None else [r.detach() for r in results]
        _save(ctx, inputs, outputs)
        ctx.again = again
        if again is None and ctx.needs_input_grad[6]:
            ctx.given_a = a
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            d_a, d_states, d_matrices, d_parameters, tap = differentiable(ctx, grads)
        else:
            d_a, d_states, d_matrices, d_parameters, tap, *_ = _backward(ctx, grads)
        return None, None, None, None, tap, None, d_a, *d_states, *d_matrices, *d_parameters


def fused_scan(
    step: str,
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    tap: Tensor | None = None,
    batch_sizes: Sequence[int] | None = None,
    engine: str = "auto",
    again: Again | None = None,
    computed_states: Sequence[Tensor] | None = None,
    resets: Tensor | None = None,
) -> list[Tensor]:
    """The operator `recurrence`, called directly where only autograd looks at the tensors: torch's lookup takes time.

    Args:
        step, a, states, matrices, parameters, tap, batch_sizes, engine, resets: see `backend.run_forward`.
        again, computed_states: see `scan`, with a dimension of models.
    """
    tensors = [a, *states, *matrices, *parameters]
    settings = (step, batch_sizes, engine)
    if computed_states is None and not plain_tensors([v for v in (tap, resets, *tensors) if v is not None]):
        return recurrence(a, list(states), list(matrices), list(parameters), tap, *settings, resets)
    results = None
    if computed_states is not None:
        inputs = scan_inputs(compiled_step(step), tensors, batch_sizes, resets)
        saved = outputs_from_states(inputs, computed_states)
        results = [*saved.states, saved.kept, saved.marks]
    counts = (len(states), len(matrices), len(parameters))
    return list(_FusedScan.apply(settings, counts, again, results, tap, resets, *tensors))
