"""A recurrence in torch operations, without an autograd graph for each step; see `recurrence` for the arguments.

It runs on any device and dtype, also on a GPU, where it is bound by launches. Each step computes what the next one
needs; everything else is computed for all steps at once, before or after the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan import chunked
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.weight_gradient import summed
from evenflow.scan.weights import matrix_gradients, parameter_gradients
from evenflow.step.compute import Values, blocks, joined, leaves, part, row
from evenflow.step.graph import Node


def forward(
    step: CompiledStep,
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor | None],
    batch_sizes: Sequence[int] | None,
) -> tuple[list[Tensor], Tensor, Tensor]:
    if step.is_linear and batch_sizes is None and chunked.pays(a):
        found = chunked.scan(a, matrices[0], states[0])
        if found is not None:
            return [found], a.new_empty(*a.shape[:-1], 0), a.new_empty(*a.shape[:-1], 0, dtype=torch.int8)
    program, places = step.program, step.places
    fresh = a.new_empty if batch_sizes is None else a.new_zeros
    new = [fresh(*a.shape[:-1], size) for size in step.state_sizes]
    kept = fresh(*a.shape[:-1], step.kept_size)
    marks = fresh(*a.shape[:-1], step.marks_size, dtype=torch.int8)
    plan, before = step.storing_plan, list(states)
    for t in range(a.shape[1]):
        n = a.shape[2] if batch_sizes is None else batch_sizes[t]
        values = leaves(program, a[:, t, :n], [s[:, :n] for s in before], parameters)
        plan(values, matrices, a)
        shape = (a.shape[0], n)
        for out, nodes in zip(new, program.new, strict=True):
            out[:, t, :n] = row(values, nodes, shape)
        if places.kept:
            kept[:, t, :n] = row(values, places.kept, shape)
        if places.marks:
            marks[:, t, :n] = row(values, places.marks, shape).to(torch.int8)
        before = [out[:, t] for out in new]
    return new, kept, marks


def backward(
    step: CompiledStep,
    grads: Sequence[Tensor | None],
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor | None],
    new: Sequence[Tensor],
    kept: Tensor,
    marks: Tensor,
    batch_sizes: Sequence[int] | None,
    want_tap: bool,
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor | None], Tensor | None]:
    places, gradient, program = step.places, step.places.gradient, step.program
    if step.is_linear and batch_sizes is None and grads[0] is not None and chunked.pays(grads[0]):
        turned = matrices[0].mT.contiguous()
        back = chunked.scan(grads[0].flip(1), turned, torch.zeros_like(states[0]))
        if back is not None:  # D_t = grad_t + D_{t+1} W is such a recurrence too
            d_a = back.flip(1)
            d_matrices = matrix_gradients(step, d_a, d_a[..., :0], a, states, new, kept, matrices, _summed)
            return d_a, [d_a[:, 0] @ matrices[0]], d_matrices, [], d_a.clone() if want_tap else None
    models, steps, batch = new[0].shape[:3]
    values: Values = {}
    for nodes, tensor in zip(program.parameters, parameters, strict=True):
        values |= {v: x.unsqueeze(1) for v, x in blocks(tensor, nodes, rows=True).items()}
    values |= blocks(a if a.dim() > 1 else None, program.a)
    for nodes, after, first in zip(program.states, new, states, strict=True):
        values |= blocks(torch.cat([first.unsqueeze(1), after[:, :-1]], 1), nodes)
    for nodes, after in zip(program.new, new, strict=True):
        for v, x in blocks(after, nodes).items():
            values.setdefault(v, x)
    values |= blocks(kept, places.kept)
    values |= {v: x.to(new[0].dtype) for v, x in blocks(marks, places.marks).items()}
    step.hoisting_plan(values, matrices, new[0])  # what no gradient is needed for, of all steps at once
    arrived = [torch.zeros_like(s) for s in new]
    widths = {p: sum(v.width for v in nodes) for p, nodes in enumerate(gradient.returned) if nodes}
    returned = {p: new[0].new_zeros(models, steps, batch, width) for p, width in widths.items()}
    carry = [torch.zeros_like(s) for s in states]
    for t in reversed(range(steps)):
        n = batch if batch_sizes is None else batch_sizes[t]
        here: Values = {}
        for v in step.loop_reads:
            x = values[v]
            # What is made of parameters alone is the same at every step.
            here[v] = x if x.dim() < 4 else x[:, 0] if x.shape[1:3] == (1, 1) else x[:, t, :n]
        for i, (nodes, grad) in enumerate(zip(gradient.by_new, grads, strict=True)):
            # A copy, since states that change places write to each other's.
            total = carry[i][:, :n].clone() if grad is None else carry[i][:, :n] + grad[:, t, :n]
            arrived[i][:, t, :n] = total
            here |= blocks(total, nodes)
        for p, plan in step.loop_plans:
            plan(here, matrices, new[0])
            if p is None:
                continue
            y = returned[p][:, t, :n]
            for view, outputs in zip(program.products[p].views, gradient.outputs[p] or [], strict=True):
                y += joined([here[v].expand(models, n, v.width) for v in outputs]) @ part(matrices[view.matrix], view)
            here |= blocks(y, gradient.returned[p])
        for i, nodes in enumerate(gradient.states):
            carry[i][:, :n] = row(here, nodes, (models, n))
    for nodes, total in zip(gradient.by_new, arrived, strict=True):
        values |= blocks(total, nodes)
    for p, total in returned.items():
        values |= blocks(total, gradient.returned[p])
    step.collecting_plan(values, matrices, new[0])
    running = None if batch_sizes is None else _running(batch_sizes, new[0])

    def collected(nodes: Sequence[Node]) -> Tensor:
        found = row(values, nodes, new[0].shape[:-1]) if nodes else new[0].new_empty(*new[0].shape[:-1], 0)
        return found.contiguous() if running is None else found.masked_fill(~running, 0)

    d_a, d_rest = collected(gradient.a), collected(places.rest)
    totals = {v: collected([v]).sum((1, 2)) for v in step.added}
    d_matrices = matrix_gradients(step, d_a, d_rest, a, states, new, kept, matrices, _summed)
    d_parameters = parameter_gradients(step, totals, d_a, d_rest, parameters)
    return d_a, carry, d_matrices, d_parameters, arrived[0] if want_tap else None


def _summed(d: Tensor, x: Tensor, x0: Tensor | None) -> Tensor:
    """``Σ_t d_t' x_{t-1}`` with x_{-1} = x0, or ``Σ_t d_t' x_t`` without x0."""
    if x0 is None:
        return summed(d.flatten(1, 2), x.flatten(1, 2))
    return summed(d[:, 1:].flatten(1, 2), x[:, :-1].flatten(1, 2)) + d[:, 0].mT @ x0


def _running(batch_sizes: Sequence[int], like: Tensor) -> Tensor:
    """Which sequences still run at each step, ``(T, B, 1)``."""
    sizes = torch.tensor(batch_sizes, device=like.device)
    return (torch.arange(like.shape[-2], device=like.device) < sizes.unsqueeze(1)).unsqueeze(-1)
