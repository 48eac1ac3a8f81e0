"""Gradients by weights from what a backward pass has stored: sums over all steps, outside the loop over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from evenflow.scan.compiled_step import CompiledStep, Use
from evenflow.step.compute import part
from evenflow.step.graph import Node
from evenflow.step.places import Place

# Σ_t d_t' x_t of ``(M, T, B, L)`` and ``(M, T, B, R)``, or of x_{t-1} where the first one is given.
Sum = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def matrix_gradients(
    step: CompiledStep,
    d_a: Tensor,
    d_rest: Tensor,
    a: Tensor,
    states: Sequence[Tensor],
    new: Sequence[Tensor],
    kept: Tensor,
    matrices: Sequence[Tensor],
    summed: Sum,
) -> list[Tensor]:
    """The gradient by each matrix, ``(M, rows, columns)``."""
    found: list[Tensor | None] = [None] * len(matrices)
    for use in step.uses:
        x, x0 = _inputs(step, use, a, states, new, kept)
        runs = [summed(_cut(d_a if place.array == "d_a" else d_rest, place, nodes), x, x0) for place, nodes in use.runs]
        d = runs[0] if len(runs) == 1 else torch.cat(runs, 1)
        total, view = found[use.view.matrix], use.view
        if total is None and use.whole:
            found[view.matrix] = d
            continue
        total = torch.zeros_like(matrices[view.matrix]) if total is None else total.clone()
        part(total, view).add_(d)
        found[view.matrix] = total
    return [torch.zeros_like(w) if d is None else d for w, d in zip(matrices, found, strict=True)]


def _inputs(
    step: CompiledStep, use: Use, a: Tensor, states: Sequence[Tensor], new: Sequence[Tensor], kept: Tensor
) -> tuple[Tensor, Tensor | None]:
    """What went into a product at every step; of a state before a step, all states and the first."""
    nodes, place = use.inputs, use.place
    if place is not None:
        if place.array == "before":
            return _cut(new[place.index], place, nodes), _cut(states[place.index], place, nodes)
        array = {"state": new[place.index], "a": a, "kept": kept}[place.array]
        return _cut(array, place, nodes), None
    return torch.cat([_block(step, v, a, states, new, kept) for v in nodes], -1), None


def _block(
    step: CompiledStep, v: Node, a: Tensor, states: Sequence[Tensor], new: Sequence[Tensor], kept: Tensor
) -> Tensor:
    program = step.program
    for i, blocks in enumerate(program.states):
        if v in blocks:
            at = sum(u.width for u in blocks[: blocks.index(v)])
            before = torch.cat([states[i].unsqueeze(1), new[i][:, :-1]], 1)
            return before[..., at : at + v.width]
    for array, blocks in (*zip(new, program.new, strict=True), (a, program.a), (kept, step.places.kept)):
        if v in blocks:
            at = sum(u.width for u in blocks[: blocks.index(v)])
            return array[..., at : at + v.width]
    raise AssertionError(f"{v} was not kept")


def _cut(array: Tensor, place: Place, nodes: Sequence[Node]) -> Tensor:
    if len(nodes) == len(place.row):
        return array
    return array[..., place.offset : place.offset + sum(v.width for v in nodes)]


def parameter_gradients(
    step: CompiledStep,
    totals: Mapping[Node, Tensor],
    d_a: Tensor,
    d_rest: Tensor,
    parameters: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradient by each parameter, ``(M, size)``, from sums over rows ``(M, width)`` or the stored gradients."""
    found: list[Tensor | None] = []
    if not any(v is not None for v in parameters):
        return [None] * len(parameters)
    for value, blocks, wanted in zip(parameters, step.program.parameters, step.places.parameters, strict=True):
        if value is None:
            found.append(None)
            continue
        parts = []
        for block, v in zip(blocks, wanted, strict=True):
            if v in totals:
                total = totals[v]
            elif (place := step.places.gradients([v])) is not None:
                total = _cut(d_a if place.array == "d_a" else d_rest, place, [v]).sum((1, 2))
            else:
                total = value.new_zeros(len(value), 1)
            if total.shape[-1] != block.width:
                total = total.sum(-1, keepdim=True) if block.width == 1 else total.expand(-1, block.width)
            parts.append(total.to(value.dtype))
        found.append(parts[0] if len(parts) == 1 else torch.cat(parts, -1))
    return found
