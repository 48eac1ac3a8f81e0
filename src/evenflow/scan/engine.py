"""The arguments and results of all engines, and the gradients by weights, which are computed from them.

An engine is a module with three functions:

    forward(inputs: ScanInputs) -> ScanOutputs
    backward(inputs, outputs, grads, want_tap) -> StepGradients      (grads: by each state, None counts as zeros)
    weight_gradient(d, x, x0, resets) -> Tensor                      (see `scan_gradients`)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from evenflow.runtime.torch_state import ieee_products
from evenflow.scan.compiled_step import CompiledStep, Use
from evenflow.step.compute import part
from evenflow.step.graph import Node
from evenflow.step.places import Place


@dataclass(frozen=True)
class ScanInputs:
    """The arguments of a scan of M models; all tensors are contiguous, of one dtype and on one device.

    Shapes:
        a ``(M, T, B, size)``; states: each ``(M, B, size)``; matrices: each ``(M, rows, columns)``; parameters: each
        ``(M, size)``, None where the step is called without it; resets ``(M, T, B, 1)``.

    Args:
        batch_sizes: how many rows, the longest first, still run at each step; None where all run to the end.
        resets: one where the states of a row restart before the step, else zero; None for a step without restarts.
        again: for a backward pass, what is computed again of each step (`Places.again`), ``(M, T, B, size)``.
    """

    step: CompiledStep
    a: Tensor
    states: Sequence[Tensor]
    matrices: Sequence[Tensor]
    parameters: Sequence[Tensor | None]
    batch_sizes: Sequence[int] | None = None
    resets: Tensor | None = None
    again: Tensor | None = None

    @property
    def reset_rows(self) -> list[Tensor]:
        """`resets` in a list of the tensors of a call; an empty list for a step without them."""
        return [] if self.resets is None else [self.resets]

    def empty_outputs(self) -> ScanOutputs:
        """Tensors for the forward pass to write to. Rows that have ended are not written and stay zero."""
        step, lead = self.step, self.a.shape[:-1]
        new = self.a.new_empty if self.batch_sizes is None else self.a.new_zeros
        states = [new(*lead, size) for size in step.state_sizes]
        return ScanOutputs(states, new(*lead, step.kept_size), new(*lead, step.marks_size, dtype=torch.int8))

    def empty_gradients(self, outputs: ScanOutputs, want_tap: bool) -> StepGradients:
        """Tensors for the backward pass to write to."""
        step, like = self.step, outputs.states[0]
        new = like.new_empty if self.batch_sizes is None else like.new_zeros
        lead = like.shape[:-1]
        d_states = [torch.empty_like(s) for s in self.states]
        return StepGradients(
            new(*lead, step.a_size), new(*lead, step.rest_size), d_states, new(like.shape) if want_tap else None
        )


class ScanOutputs(NamedTuple):
    """All states, each ``(M, T, B, size)``, and the numbers and one-byte marks that the backward pass reads."""

    states: list[Tensor]
    kept: Tensor
    marks: Tensor


@dataclass
class StepGradients:
    """The result of an engine's backward pass.

    Attributes:
        a: the gradient by a, ``(M, T, B, size)``.
        rest: the gradients by outputs of matrix products that are not gradients by blocks of a too.
        states: the gradients by the first states.
        tap: the gradient by the first state at every step, where it is asked for.
        sums: for nodes of `CompiledStep.added` their sums over all steps and rows, ``(M, width)``.
    """

    a: Tensor
    rest: Tensor
    states: list[Tensor]
    tap: Tensor | None
    sums: dict[Node, Tensor] = field(default_factory=dict)


class ScanGradients(NamedTuple):
    """The gradients by everything that a scan reads."""

    a: Tensor
    states: list[Tensor]
    matrices: list[Tensor]
    parameters: list[Tensor | None]
    tap: Tensor | None


def scan_gradients(
    engine: ModuleType, inputs: ScanInputs, outputs: ScanOutputs, grads: Sequence[Tensor | None], want_tap: bool
) -> ScanGradients:
    """The whole backward pass: the engine's, then sums over all steps for matrices and parameters.

    `engine.weight_gradient(d, x, x0, resets)` gives ``Σ_t d_t' x_{t-1}`` with x_{-1} = x0, or ``Σ_t d_t' x_t`` where
    x0 is None, for d ``(M, T, B, L)``, x ``(M, T, B, R)`` and x0 ``(M, B, R)``: ``(M, L, R)``. Terms of rows with a
    reset at step t are left out.
    """
    if inputs.step.places.again:
        inputs = replace(inputs, again=_computed_again(inputs, outputs))
    gradients: StepGradients = engine.backward(inputs, outputs, grads, want_tap)
    matrices: list[Tensor | None] = [None] * len(inputs.matrices)
    for use in inputs.step.uses:
        x, x0 = _product_inputs(use, inputs, outputs)
        resets = inputs.resets if use.restarts else None
        runs = [
            engine.weight_gradient(_cut(_stored(gradients, place), place, nodes), x, x0, resets)
            for place, nodes in use.runs
        ]
        d, number = runs[0] if len(runs) == 1 else torch.cat(runs, 1), use.view.matrix
        if (total := matrices[number]) is None and use.whole:
            matrices[number] = d
            continue
        total = torch.zeros_like(inputs.matrices[number]) if total is None else total.clone()
        part(total, use.view).add_(d)
        matrices[number] = total
    d_matrices = [torch.zeros_like(w) if d is None else d for w, d in zip(inputs.matrices, matrices, strict=True)]
    return ScanGradients(
        gradients.a, gradients.states, d_matrices, _parameter_gradients(inputs, gradients), gradients.tap
    )


def _computed_again(inputs: ScanInputs, outputs: ScanOutputs) -> Tensor:
    """`ScanInputs.again` from all states."""
    step, like, at = inputs.step, outputs.states[0], 0
    again, size = set(step.places.again), sum(v.width for v in step.places.again)
    computed = like.new_empty(*like.shape[:-1], size)
    with torch.no_grad(), ieee_products(like):
        for p, n, view in step.places.views:
            place, product, row = step.places.inputs(p), step.program.products[p], 0
            if place is None or again.isdisjoint(product.outputs[n]):
                continue
            x, x0 = (_cut(v[place.index], place, product.inputs) for v in (outputs.states, inputs.states))
            for is_again, run in itertools.groupby(product.outputs[n], again.__contains__):
                height = sum(v.width for v in run)
                if is_again:
                    weight = part(inputs.matrices[view.matrix], view)[:, row : row + height].mT
                    for m, w in enumerate(weight):
                        columns = computed[m, ..., at : at + height]
                        torch.mm(x0[m], w, out=columns[0])
                        torch.mm(x[m, :-1].flatten(0, 1), w, out=columns[1:].flatten(0, 1))
                    at += height
                row += height
    return computed


def _product_inputs(use: Use, inputs: ScanInputs, outputs: ScanOutputs) -> tuple[Tensor, Tensor | None]:
    """The input of a product at every step. If it is the state before the step: all states, and the first one."""
    nodes, place = use.inputs, use.place
    if place is None:
        return torch.cat([_block(v, inputs, outputs) for v in nodes], -1), None
    if place.array == "before":
        return _cut(outputs.states[place.index], place, nodes), _cut(inputs.states[place.index], place, nodes)
    array = {"state": outputs.states[place.index], "a": inputs.a, "kept": outputs.kept}[place.array]
    return _cut(array, place, nodes), None


def _block(v: Node, inputs: ScanInputs, outputs: ScanOutputs) -> Tensor:
    """One block at every step."""
    program, kept = inputs.step.program, inputs.step.places.kept
    for i, blocks in enumerate(program.states):
        if v in blocks:
            before = torch.cat([inputs.states[i].unsqueeze(1), outputs.states[i][:, :-1]], 1)
            return before[..., _columns(v, blocks)]
    arrays = (*zip(outputs.states, program.new, strict=True), (inputs.a, program.a), (outputs.kept, kept))
    return next(array[..., _columns(v, blocks)] for array, blocks in arrays if v in blocks)


def _columns(v: Node, blocks: Sequence[Node]) -> slice:
    start = sum(u.width for u in blocks[: blocks.index(v)])
    return slice(start, start + v.width)


def _stored(gradients: StepGradients, place: Place) -> Tensor:
    return gradients.a if place.array == "d_a" else gradients.rest


def _cut(array: Tensor, place: Place, nodes: Sequence[Node]) -> Tensor:
    if len(nodes) == len(place.row):
        return array
    return array[..., place.offset : place.offset + sum(v.width for v in nodes)]


def _parameter_gradients(inputs: ScanInputs, gradients: StepGradients) -> list[Tensor | None]:
    """The gradient by each parameter, ``(M, size)``, from sums over rows or from the stored gradients."""
    totals: list[Tensor | None] = []
    for value, blocks in zip(inputs.parameters, inputs.step.parameter_sums, strict=True):
        if value is None:
            totals.append(None)
            continue
        parts = []
        for width, v, place in blocks:
            if v in gradients.sums:
                total = gradients.sums[v]
            elif place is not None:
                total = _cut(_stored(gradients, place), place, [v]).sum((1, 2))
            else:
                total = value.new_zeros(len(value), 1)
            if total.shape[-1] != width:
                total = total.sum(-1, keepdim=True) if width == 1 else total.expand(-1, width)
            parts.append(total.to(value.dtype))
        totals.append(parts[0] if len(parts) == 1 else torch.cat(parts, -1))
    return totals
