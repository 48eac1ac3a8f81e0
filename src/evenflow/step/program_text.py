"""Writes a program as text and reads it: an operator of torch takes text, and equal programs have equal text."""

from __future__ import annotations

import json
from typing import Any

from evenflow.step.graph import Graph, Node, Product, View, ordered
from evenflow.step.program import Blocks, Program

NOTHING_DERIVED = '"derived":[]}'  # the end of a program that computes nothing from its parameters alone


def write(program: Program) -> str:
    """The program as one line of JSON; equal steps at equal sizes give equal text."""
    leaves = [v for blocks in (program.a, *program.states, *program.parameters, program.resets) for v in blocks]
    outputs = [v for product in program.products for out in product.outputs for v in out]
    nodes = sorted({*leaves, *outputs, *program.nodes(), *ordered(program.derived)}, key=lambda v: v.id)
    number = {v: n for n, v in enumerate(nodes)}

    def listed(blocks: Blocks) -> list[int]:
        return [number[v] for v in blocks]

    return json.dumps(
        {
            "nodes": [[v.op, v.width, [number[u] for u in v.operands] if v.operands else list(v.args)] for v in nodes],
            "a": listed(program.a),
            "states": [listed(b) for b in program.states],
            "parameters": [listed(b) for b in program.parameters],
            "matrices": [list(shape) for shape in program.matrices],
            "products": [
                [listed(p.inputs), p.detached, [_view(v) for v in p.views], [listed(out) for out in p.outputs]]
                for p in program.products
            ],
            "new": [listed(b) for b in program.new],
            "resets": listed(program.resets),
            "derived": listed(program.derived),
        },
        separators=(",", ":"),
    )


def read(text: str) -> Program:
    """The program of a text that `write` returned."""
    data: dict[str, Any] = json.loads(text)
    graph = Graph()
    nodes: list[Node] = []
    for op, width, args in data["nodes"]:
        match op:
            case "const":
                nodes.append(graph.const(args[0]))
            case "input" | "product":
                nodes.append(graph.leaf(op, *args, width=width))
            case "sum" | "amax":
                nodes.append(graph.reduce(op, nodes[args[0]]))
            case "wide":
                x = nodes[args[0]]
                nodes.append(graph.computed(x) if x.width == width else graph.widened(x, width))
            case _:
                nodes.append(graph.make(op, *(nodes[n] for n in args)))

    def blocks(numbers: list[int]) -> Blocks:
        return tuple(nodes[n] for n in numbers)

    products = [
        Product(blocks(inputs), detached, [View(*view) for view in views], [blocks(out) for out in outputs])
        for inputs, detached, views, outputs in data["products"]
    ]
    return Program(
        graph,
        blocks(data["a"]),
        tuple(map(blocks, data["states"])),
        tuple(map(blocks, data["parameters"])),
        tuple((rows, columns) for rows, columns in data["matrices"]),
        products,
        tuple(map(blocks, data["new"])),
        blocks(data["derived"]),
        blocks(data["resets"]),
    )


def _view(v: View) -> list[int | bool]:
    return [v.matrix, v.transposed, v.row, v.rows, v.column, v.columns]
