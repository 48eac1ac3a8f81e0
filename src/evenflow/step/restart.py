"""A step whose states restart in the rows that a mask names, as a step with one more input.

The mask is one number per row. Where a product reads states and nothing else, its result is replaced and not its input:
zero states give zero, and the states before remain the input, as they are stored.
"""

from __future__ import annotations

from evenflow.step import program_text
from evenflow.step.graph import Node, Product
from evenflow.step.hoist import rebuilt
from evenflow.step.program import Blocks, Program, flat


def restarting(program: Program, learned: bool) -> Program:
    """The step that first replaces the states of the rows whose reset is not zero.

    Args:
        learned: by parameters, one for each state, which come after all others; otherwise by zeros.
    """
    copied = program_text.read(program_text.write(program))  # nodes and products of its own
    graph, old = copied.graph, copied.nodes()
    reset = graph.leaf("input", "reset", 0, 0, width=1)
    added: list[Blocks] = []
    moved: dict[Node, Node] = {}
    for blocks in copied.states:
        first = len(copied.parameters) + len(added)
        starts = tuple(graph.leaf("input", "parameter", first, k, width=v.width) for k, v in enumerate(blocks))
        added += [starts] if learned else []
        moved |= {
            v: graph.make("where", reset, start if learned else 0, v) for v, start in zip(blocks, starts, strict=True)
        }
    states = set(flat(copied.states))
    whole = [not learned and states.issuperset(product.inputs) for product in copied.products]
    for product, of_states in zip(copied.products, whole, strict=True):
        if of_states:
            moved |= {v: graph.make("where", reset, 0, v) for out in product.outputs for v in out}
    for v in old:
        if v not in moved:
            moved[v] = rebuilt(graph, v, [moved[u] for u in v.operands])

    def blocks_of(listed: Blocks) -> Blocks:
        return tuple(moved[v] for v in listed)

    products = [
        Product(p.inputs if of_states else blocks_of(p.inputs), p.detached, p.views, p.outputs)
        for p, of_states in zip(copied.products, whole, strict=True)
    ]
    return Program(
        graph,
        copied.a,
        copied.states,
        (*copied.parameters, *added),
        copied.matrices,
        products,
        tuple(map(blocks_of, copied.new)),
        resets=(reset,),
    )
