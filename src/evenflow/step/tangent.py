"""A step together with its derivative in one direction (jvp), as a step of twice as many states."""

from __future__ import annotations

from dataclasses import replace

from evenflow.step import program_text
from evenflow.step.differentiate import vjp
from evenflow.step.graph import Graph, Node, Product
from evenflow.step.program import Blocks, Program


def tangent(program: Program) -> Program:
    """The step of (a, states, matrices, parameters), each followed by its tangent, to new states and their tangents.

    a and its tangent stand side by side; the tangents of states, matrices and parameters come after all of them.
    """
    copied = program_text.read(program_text.write(program))  # nodes and products of its own
    graph = copied.graph
    tangents: dict[Node, Node] = {}  # a node without one does not depend on what moves

    def leaves(blocks: Blocks, kind: str, index: int, first: int = 0) -> Blocks:
        tangent_leaves = tuple(graph.leaf("input", kind, index, first + k, width=v.width) for k, v in enumerate(blocks))
        tangents.update(zip(blocks, tangent_leaves, strict=True))
        return tangent_leaves

    a = leaves(copied.a, "a", 0, len(copied.a))
    states = tuple(leaves(b, "state", len(copied.states) + i) for i, b in enumerate(copied.states))
    parameters = tuple(leaves(b, "parameter", len(copied.parameters) + i) for i, b in enumerate(copied.parameters))
    number = {v: p for p, product in enumerate(copied.products) for out in product.outputs for v in out}
    products = list(copied.products)
    for v in copied.nodes():  # the inputs of a product come before its outputs
        if v in number:
            if v not in tangents:
                _product(graph, products, number[v], len(copied.matrices), tangents)
        elif v not in tangents and (tangent_of_v := _pointwise(graph, v, tangents)) is not None:
            tangents[v] = tangent_of_v
    new = tuple(tuple(graph.widened(tangents.get(v, graph.const(0)), v.width) for v in blocks) for blocks in copied.new)
    return Program(
        graph,
        (*copied.a, *a),
        (*copied.states, *states),
        (*copied.parameters, *parameters),
        (*copied.matrices, *copied.matrices),
        products,
        (*copied.new, *new),
        resets=copied.resets,
    )


def _product(graph: Graph, products: list[Product], p: int, matrices: int, tangents: dict[Node, Node]) -> None:
    """The tangents of all outputs of a product: of x W, those of W times x, and W times that of x."""
    product = products[p]
    views, outputs = list(product.views), list(product.outputs)
    totals: dict[Node, Node] = {}

    def add(into: Product, number: int, matrix_offset: int) -> None:
        for view, out in zip(views, outputs, strict=True):
            leaves = tuple(
                graph.leaf("product", "tangent", number, len(into.views), k, width=v.width) for k, v in enumerate(out)
            )
            into.views.append(replace(view, matrix=view.matrix + matrix_offset))
            into.outputs.append(leaves)
            for v, part in zip(out, leaves, strict=True):
                totals[v] = graph.make("add", totals[v], part) if v in totals else part

    add(product, p, matrices)
    if not product.detached and any(v in tangents for v in product.inputs):
        inputs = tuple(graph.computed(graph.widened(tangents.get(v, graph.const(0)), v.width)) for v in product.inputs)
        products.append(Product(inputs))
        add(products[-1], len(products) - 1, 0)
    tangents.update(totals)


def _pointwise(graph: Graph, e: Node, tangents: dict[Node, Node]) -> Node | None:
    total: Node | None = None
    for n, x in enumerate(e.operands):
        if x not in tangents or e.op == "detach":
            continue
        match e.op:
            case "sum":
                by_x: Node | None = graph.reduce("sum", tangents[x])
            case "wide":
                by_x = graph.widened(tangents[x], e.width)
            case "amax":
                most = graph.make("equal", x, e)
                weighed = graph.reduce("sum", graph.make("mul", most, tangents[x]))
                by_x = graph.make("div", weighed, graph.reduce("sum", most))
            case _:
                by_x = vjp(graph, e, tangents[x])[n]
        if by_x is not None:
            total = by_x if total is None else graph.make("add", total, by_x)
    return total
