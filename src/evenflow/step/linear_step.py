"""Steps that are linear in their states, found from the graph: ``s' = A s + b``, where A and b read no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenflow.step.compute import Evaluator
from evenflow.step.differentiate import Gradient
from evenflow.step.graph import Graph, Node, ordered
from evenflow.step.places import is_zero
from evenflow.step.program import Program, flat

MOST_BLOCKS = 4  # of all states together; a piece of a sequence is summed up in as many numbers, squared, for each unit


@dataclass(frozen=True, eq=False)
class LinearStep:
    """``new_k = Σ_l A_kl old_l + b_k`` in every unit, for blocks k and l of one width.

    Attributes:
        coefficients: A by rows; None for zero.
        rest: b; None for zero.
        plan: computes the nodes of A and b.
    """

    coefficients: tuple[tuple[Node | None, ...], ...]
    rest: tuple[Node | None, ...]
    plan: Evaluator


def linear_step(program: Program, available: Sequence[Node]) -> LinearStep | None:
    """The new states as a function of the states, or None if it is not linear unit by unit."""
    return None if program.products else _linear(program.graph, flat(program.new), flat(program.states), available)


def linear_gradient(gradient: Gradient, available: Sequence[Node]) -> LinearStep | None:
    """The gradients by the states before the step as a function of those by the new states, or None as above."""
    program, new = gradient.program, flat(gradient.states)
    return None if program.products else _linear(program.graph, new, flat(gradient.by_new), available)


def is_plain_product(program: Program) -> bool:
    """Whether the step is ``h = a + U h`` and nothing else."""
    if len(program.states) != 1 or len(program.products) != 1 or len(program.new[0]) != 1:
        return False
    (new,), product = program.new[0], program.products[0]
    plain = product.inputs == program.states[0] and len(product.views) == 1 and not product.detached
    whole = not product.views[0].transposed and new.op == "add"
    return plain and whole and {*new.operands} == {program.a[0], product.outputs[0][0]}


def _linear(graph: Graph, new: Sequence[Node], old: Sequence[Node], available: Sequence[Node]) -> LinearStep | None:
    if len(old) > MOST_BLOCKS or len({v.width for v in (*old, *new)}) != 1:
        return None
    zero = graph.const(0)
    # For each node that reads `old`: its coefficients, and the rest. Any other node is its own rest.
    coefficients: dict[Node, dict[Node, Node]] = {v: {v: graph.const(1)} for v in old}
    rest: dict[Node, Node] = dict.fromkeys(old, zero)
    for v in ordered(new):
        reads = [u in coefficients for u in v.operands]
        if v in coefficients or not any(reads):
            continue
        linear = {"mul": reads != [True, True], "div": reads == [True, False], "where": not reads[0]}
        if not linear.get(v.op, v.op in ("add", "sub", "neg")):
            return None
        of_operands = [coefficients.get(u, {}) for u in v.operands]
        remaining = [rest.get(u, u) for u in v.operands]
        coefficients[v] = {}
        for k in dict.fromkeys(k for listed in of_operands for k in listed):
            by_k = [listed.get(k, zero) for listed in of_operands]
            if v.op in ("mul", "div", "where"):  # an operand that does not read `old` is a factor, or the condition
                by_k = [c if read else r for c, r, read in zip(by_k, remaining, reads, strict=True)]
            if v.op == "where":
                by_k[1:] = [listed.get(k, zero) for listed in of_operands[1:]]
            coefficients[v][k] = graph.make(v.op, *by_k)
        rest[v] = graph.make(v.op, *remaining)
    rows = [coefficients.get(v, {}) for v in new]
    nodes = tuple(tuple(_unless_zero(row.get(u, zero)) for u in old) for row in rows)
    added = tuple(_unless_zero(rest.get(v, v)) for v in new)
    return LinearStep(nodes, added, Evaluator([v for row in (*nodes, added) for v in row if v is not None], available))


def _unless_zero(v: Node) -> Node | None:
    return None if is_zero(v) else v
