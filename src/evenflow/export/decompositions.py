"""The operators of this package in torch's own, for exported programs that run where evenflow is not installed.

``torch.export`` keeps each operator as one node, which needs evenflow to be loaded. With these decompositions a
recurrence becomes torch's `scan`, whose body is the translated step, for any number of time steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.scan.compiled_step import compiled_step
from evenflow.scan.derived_parameters import derive
from evenflow.step.compute import leaves, row


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions for `torch.export.ExportedProgram.run_decompositions`, torch's defaults included.

    >>> T, B = torch.export.Dim("T"), torch.export.Dim("B")
    >>> program = torch.export.export(model, (x,), dynamic_shapes=({0: T, 1: B},))
    >>> torch.export.save(program.run_decompositions(evenflow.export.decompositions()), "model.pt2")
    """
    operators = torch.ops.evenflow
    return dict(torch.export.default_decompositions()) | {
        operators.recurrence.default: recurrence,
        operators.projection.default: projection,
        operators.derived_parameters.default: derive,
        operators.exponential.default: exponential,
    }


def recurrence(
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor],
    tap: Tensor | None,
    step: str,
    batch_sizes: Sequence[int] | None,
    engine: str,
    resets: Tensor | None = None,
) -> list[Tensor]:
    """The new states of all steps; what the operator saves for its backward pass is left empty."""
    from torch._higher_order_ops.scan import scan_op  # the public form compiles the body anew for each program

    if batch_sizes is not None:
        raise ValueError("packed sequences cannot be decomposed: export the model for padded input")
    made = compiled_step(step)
    program, plan = made.program, made.forward_plan
    count, weights = len(states), len(matrices)

    def one(*values: Tensor) -> list[Tensor]:
        carried, at, rest = list(values[:count]), values[count], values[count + 1 :]
        restart, rest = (rest[0], rest[1:]) if program.resets else (None, rest)
        listed = iter(rest[weights:])
        # The step may be called without some of its parameters.
        numbers = [next(listed) if nodes else None for nodes in program.parameters]
        computed = plan(leaves(program, at, carried, numbers, restart), rest[:weights], at)
        new = [row(computed, nodes, at.shape[:-1]) for nodes in program.new]
        return [state.clone() for state in (*new, *new)]

    first, xs = [state.clone() for state in states], [a.transpose(0, 1)]
    xs += [] if resets is None else [resets.to(a.dtype).unsqueeze(-1).transpose(0, 1)]
    new = scan_op(one, first, xs, additional_inputs=(*matrices, *parameters))[count:]
    lead = a.shape[:-1]
    saved = [a.new_zeros(*lead, made.kept_size), a.new_zeros(*lead, made.marks_size, dtype=torch.int8)]
    return [*(state.transpose(0, 1) for state in new), *saved]


def projection(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x Wᵀ + b`` for each model."""
    y = x.flatten(1, -2) @ weight.mT
    return (y if bias is None else y + bias.unsqueeze(1)).view(*x.shape[:-1], weight.shape[1])


def exponential(raw: Tensor, n: int, gradient: str, method: str) -> Tensor:
    """The exponential of the skew-symmetric matrix with `raw` above its diagonal."""
    full = raw.double()  # so that the matrix is as close to orthogonal as the map's own
    i, j = torch.triu_indices(n, n, 1, device=raw.device)
    half = full.new_zeros(*raw.shape[:-1], n * n).index_copy(-1, i * n + j, full).unflatten(-1, (n, n))
    return torch.linalg.matrix_exp(half - half.mT).to(raw.dtype)
