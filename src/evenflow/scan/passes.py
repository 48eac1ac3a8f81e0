"""Both passes of a recurrence, by whichever engine is fastest: from tensors to tensors, without autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.runtime.torch_state import ieee_products
from evenflow.scan import backend
from evenflow.scan.compiled_step import CompiledStep, compiled_step
from evenflow.scan.storage import HALF
from evenflow.step.compute import leaves, row


def run_forward(
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    tap: Tensor | None,
    step: str,
    batch_sizes: Sequence[int] | None,
    engine: str,
) -> list[Tensor]:
    """All states, each ``(M, T, B, size)``, then what else the backward pass needs of every step: numbers and marks.

    Args:
        a: ``(M, T, B, size)``; states: each ``(M, B, size)``; matrices: each ``(M, rows, columns)``; parameters: those
            that the step is called with, each ``(M, size)``.
        tap: zeros, there for its gradient alone, and so not added.
        step: the text of a program, see `step.program_text`.
    """
    ready, wide = widened([a, *states, *matrices, *parameters])
    a_wide, *rest = ready
    made = compiled_step(step)
    given = parts(made, rest)
    run = backend.choose(made, engine, matrices[0] if matrices else a, ready)
    new, kept, marks = run.forward(made, a_wide, *given, batch_sizes)
    if wide:
        new, kept = [s.to(a.dtype) for s in new], kept.to(a.dtype)
    return [*new, kept, marks]


def run_backward(
    grads: Sequence[Tensor | None],
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    results: Sequence[Tensor],
    step: str,
    batch_sizes: Sequence[int] | None,
    want_tap: bool,
    engine: str,
) -> list[Tensor]:
    """Gradients by a, the states, the matrices, the parameters and (where wanted, else empty) every first state.

    A missing gradient by a state counts as zeros; a is empty where the step does not read it going back.
    """
    made = compiled_step(step)
    count = len(states)
    stored = [*states, *matrices, *parameters, *results[: count + 1]]
    several, wide = widened([a, *stored, *(g for g in grads if g is not None)])
    a_wide, *rest = several
    given, after = parts(made, rest), rest[len(states) + len(matrices) + len(parameters) :]
    new, kept = after[:count], after[count]
    arriving = iter(after[count + 1 :])
    by_new = [None if g is None else next(arriving) for g in grads]
    run = backend.choose(made, engine, matrices[0] if matrices else new[0], [v for v in several if v.numel()])
    d_a, d_states, d_matrices, d_parameters, tap = run.backward(
        made, by_new, a_wide, *given, new, kept, results[count + 1], batch_sizes, want_tap
    )
    present = [d for d in d_parameters if d is not None]
    found = [d_a, *d_states, *d_matrices, *present, new[0].new_empty(0) if tap is None else tap]
    if wide:
        likes = [results[0], *states, *matrices, *parameters, results[0]]
        found = [d.to(like.dtype) for d, like in zip(found, likes, strict=True)]
    return found


def widened(tensors: Sequence[Tensor]) -> tuple[list[Tensor], bool]:
    """The tensors contiguous, and in float32, or float64 where others are, if any is in half precision."""
    wide = any(v.dtype in HALF for v in tensors)
    full = torch.float64 if any(v.dtype == torch.float64 for v in tensors) else torch.float32
    return [(v.to(full) if wide and v.dtype in HALF else v).contiguous() for v in tensors], wide


def parts(step: CompiledStep, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
    """States, matrices, and parameters with None for those that the step is called without."""
    program = step.program
    states, matrices = len(program.states), len(program.matrices)
    listed = iter(tensors[states + matrices :])
    parameters = [next(listed) if nodes else None for nodes in program.parameters]
    return list(tensors[:states]), list(tensors[states : states + matrices]), parameters


def known_results(step: str, new: Sequence[Tensor], a: Tensor, states: Sequence[Tensor], matrices: Sequence[Tensor],
                  parameters: Sequence[Tensor]) -> list[Tensor]:  # fmt: skip
    """What a scan gives besides the states, found from all of them: no step waits for another."""
    made = compiled_step(step)
    places, program = made.places, made.program
    with torch.no_grad(), ieee_products(a):
        *_, listed = parts(made, [*states, *matrices, *parameters])
        before = [torch.cat([first.unsqueeze(1), s[:, :-1]], 1) for first, s in zip(states, new, strict=True)]
        lead = a.shape[:-1]
        values = leaves(program, a.flatten(1, 2), [s.flatten(1, 2) for s in before], listed)
        made.keeping_plan(values, matrices, a)
        rows = a.flatten(1, 2).shape[:-1]
        kept = row(values, places.kept, rows) if places.kept else a.new_empty(*rows, 0)
        marks = (
            row(values, places.marks, rows).to(torch.int8)
            if places.marks
            else kept.new_empty(*rows, 0, dtype=torch.int8)
        )
        return [*new, *(v.contiguous().unflatten(1, lead[1:]) for v in (kept, marks))]


def split(tensors: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    found, at = [], 0
    for count in counts:
        found.append(list(tensors[at : at + count]))
        at += count
    return [*found, list(tensors[at:])]
