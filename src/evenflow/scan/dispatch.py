"""Runs a cell over time by the fastest engine that gives what the reference loop gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from evenflow.cells import Cell, State, Weights
from evenflow.runtime.torch_state import has_nonreverse_transform, without_tracing
from evenflow.runtime.triton_kernels import compiled_code_allowed
from evenflow.scan import linear, projection, recurrence, reference
from evenflow.scan.backend import say
from evenflow.scan.compiled_step import compiled_step
from evenflow.scan.cuda.cuda_recurrence import STEPS_TO_BEGIN
from evenflow.scan.derived_parameters import with_derived
from evenflow.scan.passes import known_results
from evenflow.step import Untranslatable

ENGINES = ("auto", "torch", "reference")


def project(cell: Cell, x: Tensor, weights: Weights, engine: str = "auto") -> Tensor:
    """What `cell.project` gives, by compiled code where that is faster: a thin input makes torch's product slow."""
    device = x.device.type
    _same_dtype(cell, x, weights)
    plain = type(cell).project is Cell.project and x.dtype in (torch.float32, torch.float64)
    if engine != "auto" or not plain or device not in ("cpu", "cuda") or has_nonreverse_transform():
        return cell.project(x, weights)
    if torch.is_autocast_enabled(device):
        return cell.project(x, weights)
    weight, bias = weights["weight_ih"], weights.get("bias")
    if device == "cpu":
        return linear.project(x, weight, bias)
    one_bias = None if bias is None else bias.unsqueeze(0)
    return projection.project(x.flatten(0, 1).unsqueeze(0), weight.unsqueeze(0), one_bias).view(*x.shape[:2], -1)


def scan(
    cell: Cell,
    a: Tensor,
    state: State,
    weights: Weights,
    batch_sizes: Sequence[int] | None = None,
    tap: Tensor | None = None,
    engine: str = "auto",
    storage: torch.dtype | None = None,
    known: State | None = None,
    again: Callable[[], Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Every state of `cell` over the steps of `a`; shapes and arguments as in `reference.scan`.

    Args:
        engine: ``"auto"``, the fastest there is; ``"torch"``, the fused scan in torch operations, without compiled
            code; ``"reference"``, the loop itself; ``"linearized"``, the fastest whose gradient has one of its own by
            what comes into it, weights and states held.
        storage: the dtype in which the states, and what else the backward pass needs of every step, are kept.
        known: every state, where they were computed before: the scan does not run again.
        again: computes a once more; with it a is not held for second derivatives.

    It runs in the dtype of its recurrent matrix, autocast or not: errors of half precision would accumulate.
    """
    matrices, parameters = cell.arguments(weights)
    dtype = matrices[0].dtype
    with nullcontext() if a.is_meta else torch.autocast(a.device.type, enabled=False):
        a, state = a.to(storage or dtype), tuple(s.to(dtype) for s in state)
        if engine != "reference" and not a.is_meta:
            step, why = program(cell, a, state, weights)
            if step is not None:
                states_0, weights_0 = ([v.unsqueeze(0) for v in each] for each in (state, matrices))
                held = with_derived(step, [None if p is None else p.unsqueeze(0) for p in parameters])
                given = (a.unsqueeze(0), states_0, weights_0, held)
                results = None
                if known is not None:
                    results = known_results(step, [s.unsqueeze(0) for s in known], *given)
                once_more = None if again is None else lambda: again().to(storage or dtype).unsqueeze(0)
                one_tap = None if tap is None else tap.unsqueeze(0)
                several = recurrence.scan(step, *given, one_tap, batch_sizes, engine, once_more, results)
                # Taken off by `squeeze`, whose gradient is a view; that of an index would be as many zeros, and a copy.
                return tuple(s.squeeze(0) for s in several[: len(state)])
            say("in its plain loop, many times slower than by a fused scan", why)
        states = reference.scan(cell, a.to(dtype), state, weights, batch_sizes, tap)
        return states if storage is None else tuple(s.to(storage) for s in states)


def program(cell: Cell, a: Tensor, state: State, weights: Weights) -> tuple[str | None, str]:
    """The text of a cell's step, or None and why it runs in the plain loop."""
    if has_nonreverse_transform():
        return None, "a fused scan has a gradient for a backward pass alone, none for torch.func and forward mode"
    if state and len(cell.recurrent) == 0:
        return None, f"{cell.name} has no matrix"
    step = without_tracing(lambda: cell.program(a.shape[-1], [s.shape[-1] for s in state], weights))
    return (None, f"of {cell.name}, {step}") if isinstance(step, Untranslatable) else (step, "")


def _same_dtype(cell: Cell, x: Tensor, weights: Weights) -> None:
    """Refuse an input that torch's product would refuse, and say what to do."""
    if type(cell).project is not Cell.project or x.dtype == (weight := weights["weight_ih"]).dtype:
        return
    casts = not x.is_meta and torch.is_autocast_enabled(x.device.type)
    if not casts or torch.float64 in (x.dtype, weight.dtype):  # which autocast leaves as it is
        raise ValueError(f"input must be {weight.dtype} as the layer's weights are, got {x.dtype}: convert one of them")


def recordable(cell: Cell, steps: int) -> bool:
    """Whether a scan on a GPU is a few kernels that depend on shapes alone. A long linear one looks at its powers."""
    return compiled_code_allowed() and cell.is_translated() and not (steps > STEPS_TO_BEGIN and _is_linear(cell))


def _is_linear(cell: Cell) -> bool:
    return any(compiled_step(text).is_linear for text in cell.programs())
