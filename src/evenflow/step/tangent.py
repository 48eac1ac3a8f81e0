"""A step together with its derivative in one direction: forward differentiation, as a step of twice as many states."""

from __future__ import annotations

from dataclasses import replace

from evenflow.step import program_text
from evenflow.step.differentiate import pulled_back
from evenflow.step.graph import Graph, Node, Product
from evenflow.step.program import Blocks, Program


def tangent(program: Program) -> Program:
    """The step of (a, states, matrices, parameters), each followed by its tangent, to new states and their tangents.

    a and its tangent stand side by side; the tangents of states, matrices and parameters come after all of them.
    """
    made = program_text.read(program_text.write(program))  # nodes and products of its own
    graph = made.graph
    moved: dict[Node, Node] = {}  # a node that is not among them does not move

    def leaves(blocks: Blocks, kind: str, index: int, first: int = 0) -> Blocks:
        found = tuple(graph.leaf("input", kind, index, first + k, width=v.width) for k, v in enumerate(blocks))
        moved.update(zip(blocks, found, strict=True))
        return found

    a = leaves(made.a, "a", 0, len(made.a))
    states = tuple(leaves(b, "state", len(made.states) + i) for i, b in enumerate(made.states))
    parameters = tuple(leaves(b, "parameter", len(made.parameters) + i) for i, b in enumerate(made.parameters))
    number = {v: p for p, product in enumerate(made.products) for out in product.outputs for v in out}
    products = list(made.products)
    for v in made.nodes():  # what goes into a product was made before its outputs
        if v in number:
            if v not in moved:
                _product(graph, products, number[v], len(made.matrices), moved)
        elif v not in moved and (found := _pointwise(graph, v, moved)) is not None:
            moved[v] = found
    new = tuple(tuple(graph.widened(moved.get(v, graph.const(0)), v.width) for v in blocks) for blocks in made.new)
    return Program(
        graph,
        (*made.a, *a),
        (*made.states, *states),
        (*made.parameters, *parameters),
        (*made.matrices, *made.matrices),
        products,
        (*made.new, *new),
    )


def _product(graph: Graph, products: list[Product], p: int, matrices: int, moved: dict[Node, Node]) -> None:
    """The tangents of all outputs of a product: of x W, those of W times x, and W times that of x."""
    product = products[p]
    views, outputs = list(product.views), list(product.outputs)
    totals: dict[Node, Node] = {}

    def add(into: Product, number: int, matrix_offset: int) -> None:
        for view, out in zip(views, outputs, strict=True):
            found = tuple(
                graph.leaf("product", "tangent", number, len(into.views), k, width=v.width) for k, v in enumerate(out)
            )
            into.views.append(replace(view, matrix=view.matrix + matrix_offset))
            into.outputs.append(found)
            for v, part in zip(out, found, strict=True):
                totals[v] = graph.make("add", totals[v], part) if v in totals else part

    add(product, p, matrices)
    if not product.detached and any(v in moved for v in product.inputs):
        inputs = tuple(graph.computed(graph.widened(moved.get(v, graph.const(0)), v.width)) for v in product.inputs)
        products.append(Product(inputs))
        add(products[-1], len(products) - 1, 0)
    moved.update(totals)


def _pointwise(graph: Graph, e: Node, moved: dict[Node, Node]) -> Node | None:
    total: Node | None = None
    for n, x in enumerate(e.operands):
        if x not in moved or e.op == "detach":
            continue
        match e.op:
            case "sum":
                by_x: Node | None = graph.reduce("sum", moved[x])
            case "wide":
                by_x = graph.widened(moved[x], e.width)
            case "amax":
                most = graph.make("equal", x, e)
                weighed = graph.reduce("sum", graph.make("mul", most, moved[x]))
                by_x = graph.make("div", weighed, graph.reduce("sum", most))
            case _:
                by_x = pulled_back(graph, e, moved[x])[n]
        if by_x is not None:
            total = by_x if total is None else graph.make("add", total, by_x)
    return total
