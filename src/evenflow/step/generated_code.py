"""What generated C and CUDA have in common: the products of a pass, the tensors of a call, and nested blocks."""

from __future__ import annotations

from collections.abc import Iterable

from evenflow.step.differentiate import Gradient
from evenflow.step.program import Program, flat
from evenflow.step.schedule import PassProduct

INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def forward_products(program: Program) -> list[PassProduct]:
    """The matrix products of the forward pass."""
    return [PassProduct(p, x.inputs, tuple(flat(x.outputs))) for p, x in enumerate(program.products)]


def backward_products(gradient: Gradient) -> list[PassProduct]:
    """The matrix products of the backward pass: from gradients by outputs to gradients by inputs."""
    pairs = enumerate(zip(gradient.passed, gradient.returned, strict=True))
    return [PassProduct(p, tuple(flat(views)), returned) for p, (views, returned) in pairs if views and returned]


def tensor_names(program: Program, backward: bool, matrices: bool) -> list[str]:
    """What a call of a pass reads and writes, in order.

    ``s0_I`` first states, ``wI`` matrices (where they are passed in this place), ``pI`` parameters, ``resets`` of each
    row (where the step has them), ``sI`` all states, ``again`` what is computed again before the backward pass, ``gI``
    gradients by states; ``d_`` marks the gradients that the pass writes.
    """
    states = range(len(program.states))
    names = ["a", *(f"s0_{i}" for i in states)]
    names += [f"w{i}" for i in range(len(program.matrices))] if matrices else []
    names += [*(f"p{i}" for i in range(len(program.parameters))), *(["resets"] if program.resets else [])]
    names += [*(f"s{i}" for i in states), "kept", "marks"]
    if backward:
        names += ["again", *(f"g{i}" for i in states), "d_a", "d_rest", *(f"d_s0_{i}" for i in states), "tap", "sums"]
    return names


def braces(head: str, lines: Iterable[str], end: str = "}") -> list[str]:
    """A block of statements after `head`, indented."""
    return [f"{head} {{".lstrip(), *(f"    {line}" for line in lines), end]
