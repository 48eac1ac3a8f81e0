"""Values that depend on a step's parameters alone, computed once for all steps by an operator.

Compilers and tracers see one operator instead of the code that evaluates a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.runtime.torch_state import plain_tensors, without_autocast
from evenflow.scan.compiled_step import compiled_step
from evenflow.scan.register_operator import operator
from evenflow.step.compute import Values, blocks, row
from evenflow.step.program_text import NOTHING_DERIVED


def with_derived(step: str, parameters: Sequence[Tensor | None]) -> list[Tensor]:
    """The parameters of the recurrence operator: those present, then the values derived from them."""
    present = [p for p in parameters if p is not None]
    if step.endswith(NOTHING_DERIVED):
        return present
    return [*present, *(derive(present, step) if plain_tensors(present) else derived_parameters(present, step))]


def derive(present: Sequence[Tensor], step: str) -> list[Tensor]:
    translated, listed = compiled_step(step), iter(present)
    program = translated.program
    values: Values = {}
    for nodes in program.parameters[: -len(translated.program.derived)]:
        values |= blocks(next(listed) if nodes else None, nodes)
    translated.derived_plan(values, [], present[0])
    return [row(values, [v], present[0].shape[:-1]).contiguous() for v in program.derived]


@without_autocast
def _derived_again(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    with torch.enable_grad():
        present = [p.detach().requires_grad_() for p in ctx.saved_tensors]
        paths = [(d, g) for d, g in zip(derive(present, ctx.step), grads, strict=True) if g is not None]
        outputs, arriving = zip(*paths, strict=True) if paths else ((), ())
        return list(torch.autograd.grad(outputs, present, arriving, allow_unused=True, materialize_grads=True)), None


def _setup_derived(ctx: Any, inputs: tuple[Any, ...], output: Sequence[Tensor]) -> None:
    ctx.save_for_backward(*inputs[0])
    ctx.step = inputs[1]


def _fake_derived(present: Sequence[Tensor], step: str) -> list[Tensor]:
    like = present[0]
    return [like.new_empty(*like.shape[:-1], v.width) for v in compiled_step(step).program.derived]


derived_parameters = operator(
    "derived_parameters",
    "(Tensor[] parameters, str step) -> Tensor[]",
    derive,
    _fake_derived,
    _setup_derived,
    _derived_again,
)
