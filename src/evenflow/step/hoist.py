"""Moves operations on parameters alone out of the step: their results are the same at every step."""

from __future__ import annotations

from evenflow.step.graph import Graph, Node, Product
from evenflow.step.program import Blocks, Program, flat


def hoisted(program: Program) -> Program:
    """The program with one more parameter for each value that is computed from parameters alone.

    `Program.derived` of the result has these values, as nodes of the original parameters.
    """
    nodes = program.nodes()
    leaves = set(flat(program.parameters))
    fed = {v for product in program.products for v in product.inputs}  # stored row by row
    alone: set[Node] = set()
    for v in nodes:  # operands come first
        if v in leaves or (v.operands and _is_alone(v, alone) and v not in fed):
            alone.add(v)
    read = {u for v in nodes if v not in alone for u in v.operands} | set(flat(program.new))
    derived = [v for v in nodes if v in alone and v in read and v not in leaves]
    if not derived:
        return program
    graph, first = program.graph, len(program.parameters)
    added = tuple(graph.leaf("input", "parameter", first + n, 0, width=v.width) for n, v in enumerate(derived))
    moved: dict[Node, Node] = dict(zip(derived, added, strict=True))
    for v in nodes:
        if v not in moved:
            moved[v] = rebuilt(graph, v, [moved[u] for u in v.operands])

    def blocks(listed: Blocks) -> Blocks:
        return tuple(moved[v] for v in listed)

    products = [Product(blocks(p.inputs), p.detached, p.views, p.outputs) for p in program.products]
    parameters = (*program.parameters, *((v,) for v in added))
    return Program(
        graph,
        program.a,
        program.states,
        parameters,
        program.matrices,
        products,
        tuple(map(blocks, program.new)),
        tuple(derived),
    )


def _is_alone(v: Node, alone: set[Node]) -> bool:
    return all(u in alone or u.op == "const" for u in v.operands) and any(u.op != "const" for u in v.operands)


def rebuilt(graph: Graph, v: Node, operands: list[Node]) -> Node:
    """The same operation on other operands."""
    match v.op:
        case "input" | "product" | "const":
            return v
        case "sum" | "amax":
            return graph.reduce(v.op, operands[0])
        case "wide":
            x = operands[0]
            return graph.computed(x) if x.width == v.width else graph.widened(x, v.width)
    return graph.make(v.op, *operands)
