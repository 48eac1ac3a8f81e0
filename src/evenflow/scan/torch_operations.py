"""A recurrence in torch operations, without an autograd graph for each step; see `engine` for the arguments.

It runs on any device and dtype, also on a GPU, where it is bound by launches. Each step computes what the next one
needs; everything else is computed for all steps at once, before or after the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.runtime.torch_state import ieee_products
from evenflow.scan import chunked, linear
from evenflow.scan.engine import ScanInputs, ScanOutputs, StepGradients
from evenflow.scan.weight_gradient import summed, without_restarts
from evenflow.step.compute import Values, blocks, joined, leaves, part, row
from evenflow.step.graph import Node


def forward(inputs: ScanInputs) -> ScanOutputs:
    step, a, batch_sizes = inputs.step, inputs.a, inputs.batch_sizes
    if step.is_linear and batch_sizes is None and chunked.pays(a):
        chunks = chunked.forward(inputs)
        if chunks is not None:
            return chunks
    if linear.pays(a) and (states := linear.forward(inputs)) is not None:
        return outputs_from_states(inputs, states)
    program, places, outputs = step.program, step.places, inputs.empty_outputs()
    before = list(inputs.states)
    for t in range(a.shape[1]):
        n = a.shape[2] if batch_sizes is None else batch_sizes[t]
        resets = None if inputs.resets is None else inputs.resets[:, t, :n]
        values = leaves(program, a[:, t, :n], [s[:, :n] for s in before], inputs.parameters, resets)
        step.storing_plan(values, inputs.matrices, a)
        shape = (a.shape[0], n)
        for out, nodes in zip(outputs.states, program.new, strict=True):
            out[:, t, :n] = row(values, nodes, shape)
        if places.kept:
            outputs.kept[:, t, :n] = row(values, places.kept, shape)
        if places.marks:
            outputs.marks[:, t, :n] = row(values, places.marks, shape).to(torch.int8)
        before = [out[:, t] for out in outputs.states]
    return outputs


def backward(inputs: ScanInputs, outputs: ScanOutputs, grads: Sequence[Tensor | None], want_tap: bool) -> StepGradients:
    step, matrices, batch_sizes = inputs.step, inputs.matrices, inputs.batch_sizes
    places, gradient = step.places, step.places.gradient
    if step.is_linear and batch_sizes is None and grads[0] is not None and chunked.pays(grads[0]):
        chunks = chunked.backward(inputs, grads[0], want_tap)
        if chunks is not None:
            return chunks
    states, like = outputs.states, outputs.states[0]
    values = _stored_values(inputs, outputs)
    step.hoisting_plan(values, matrices, like)  # all steps at once
    gradients = linear.backward(inputs, values, grads, like) if linear.pays(like) else None
    arrived, carry = gradients or _loop(inputs, values, grads, states)
    for nodes, total in zip(gradient.by_new, arrived, strict=True):
        values |= blocks(total, nodes)
    step.collecting_plan(values, matrices, like)
    running = None if batch_sizes is None else _running(batch_sizes, like)

    def collected(nodes: Sequence[Node]) -> Tensor:
        all_steps = row(values, nodes, like.shape[:-1]) if nodes else like.new_empty(*like.shape[:-1], 0)
        return all_steps.contiguous() if running is None else all_steps.masked_fill(~running, 0)

    sums = {v: collected([v]).sum((1, 2)) for v in step.added}
    tap = arrived[0] if want_tap else None
    return StepGradients(collected(gradient.a), collected(places.rest), carry, tap, sums)


def _loop(
    inputs: ScanInputs, values: Values, grads: Sequence[Tensor | None], states: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients by the states after each step and those by the first states, from the last step to the first.

    The gradients that products return are added to `values`.
    """
    step, matrices, batch_sizes = inputs.step, inputs.matrices, inputs.batch_sizes
    gradient, program, like = step.places.gradient, step.program, states[0]
    models, steps, batch = like.shape[:3]
    arrived = [torch.zeros_like(s) for s in states]
    widths = {p: sum(v.width for v in nodes) for p, nodes in enumerate(gradient.returned) if nodes}
    returned = {p: like.new_zeros(models, steps, batch, width) for p, width in widths.items()}
    carry = [torch.zeros_like(s) for s in inputs.states]
    for t in reversed(range(steps)):
        n = batch if batch_sizes is None else batch_sizes[t]
        now: Values = {}
        for v in step.loop_reads:
            x = values[v]
            # What is computed from parameters alone is the same at every step.
            now[v] = x if x.dim() < 4 else x[:, 0] if x.shape[1:3] == (1, 1) else x[:, t, :n]
        for i, (nodes, grad) in enumerate(zip(gradient.by_new, grads, strict=True)):
            # A copy, since states that change places write to each other's.
            total = carry[i][:, :n].clone() if grad is None else carry[i][:, :n] + grad[:, t, :n]
            arrived[i][:, t, :n] = total
            now |= blocks(total, nodes)
        for p, plan in step.loop_plans:
            plan(now, matrices, like)
            if p is None:
                continue
            y = returned[p][:, t, :n]
            for view, outs in zip(program.products[p].views, gradient.passed[p] or [], strict=True):
                y += joined([now[v].expand(models, n, v.width) for v in outs]) @ part(matrices[view.matrix], view)
            now |= blocks(y, gradient.returned[p])
        for i, nodes in enumerate(gradient.states):
            carry[i][:, :n] = row(now, nodes, (models, n))
    for p, total in returned.items():
        values |= blocks(total, gradient.returned[p])
    return arrived, carry


def _stored_values(inputs: ScanInputs, outputs: ScanOutputs) -> Values:
    """The blocks of everything that the forward pass read and wrote, at all steps."""
    places, program, like = inputs.step.places, inputs.step.program, outputs.states[0]
    values: Values = {}
    for nodes, tensor in zip(program.parameters, inputs.parameters, strict=True):
        values |= {v: x.unsqueeze(1) for v, x in blocks(tensor, nodes, rows=True).items()}
    values |= blocks(inputs.a if inputs.a.dim() > 1 else None, program.a) | blocks(inputs.resets, program.resets)
    for nodes, after, first in zip(program.states, outputs.states, inputs.states, strict=True):
        values |= blocks(torch.cat([first.unsqueeze(1), after[:, :-1]], 1), nodes)
    for nodes, after in zip(program.new, outputs.states, strict=True):
        for v, x in blocks(after, nodes).items():
            values.setdefault(v, x)
    values |= blocks(outputs.kept, places.kept) | blocks(inputs.again, places.again)
    return values | {v: x.to(like.dtype) for v, x in blocks(outputs.marks, places.marks).items()}


def outputs_from_states(inputs: ScanInputs, states: Sequence[Tensor]) -> ScanOutputs:
    """The result of `forward` from all states: numbers and marks of all steps are computed at once."""
    step, a, places = inputs.step, inputs.a, inputs.step.places
    with torch.no_grad(), ieee_products(a):
        pairs = zip(inputs.states, states, strict=True)
        before = [torch.cat([first.unsqueeze(1), s[:, :-1]], 1).flatten(1, 2) for first, s in pairs]
        rows = a.flatten(1, 2)
        resets = None if inputs.resets is None else inputs.resets.flatten(1, 2)
        values = leaves(step.program, rows, before, inputs.parameters, resets)
        step.keeping_plan(values, inputs.matrices, a)
        shape = rows.shape[:-1]
        kept = row(values, places.kept, shape) if places.kept else a.new_empty(*shape, 0)
        marks = row(values, places.marks, shape).to(torch.int8) if places.marks else a.new_empty(*shape, 0).char()
        return ScanOutputs(list(states), *(v.contiguous().unflatten(1, a.shape[1:3]) for v in (kept, marks)))


def weight_gradient(d: Tensor, x: Tensor, x0: Tensor | None, resets: Tensor | None = None) -> Tensor:
    """See `engine.scan_gradients`."""
    x, x0 = without_restarts(x, x0, resets)
    if x0 is None:
        return summed(d.flatten(1, 2), x.flatten(1, 2))
    return summed(d[:, 1:].flatten(1, 2), x[:, :-1].flatten(1, 2)) + d[:, 0].mT @ x0


def _running(batch_sizes: Sequence[int], like: Tensor) -> Tensor:
    """Which sequences still run at each step, ``(T, B, 1)``."""
    sizes = torch.tensor(batch_sizes, device=like.device)
    return (torch.arange(like.shape[-2], device=like.device) < sizes.unsqueeze(1)).unsqueeze(-1)
