"""The memory layout of a step: which arrays both passes write, and in which of them each block is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from evenflow.step.differentiate import Gradient
from evenflow.step.graph import Node, View, terms
from evenflow.step.program import Program, flat


@dataclass(frozen=True)
class Place:
    """Some blocks side by side in an array.

    Args:
        array: ``"a"``, ``"before"`` or ``"state"`` (the state before or after the step), ``"kept"``; of the backward
            pass ``"d_a"`` or ``"d_rest"``.
        index: which state.
        skipped: the blocks before the first in a row of the array.
        row: all blocks of a row.
    """

    array: str
    index: int
    skipped: tuple[Node, ...]
    row: tuple[Node, ...]

    @cached_property
    def offset(self) -> int:
        return sum(v.width for v in self.skipped)


class Places:
    """The arrays of a step, each ``(M, T, B, ...)`` with blocks side by side in a row.

    Attributes:
        kept, marks: what the forward pass stores besides the states: numbers and bytes.
        again: outputs of products that are computed again, for all steps at once, before the backward pass.
        rest: gradients by outputs of products, except those that are gradients by blocks of a too.
        parameters: for each block of a parameter the node whose sum over all steps and rows is its gradient.
        deferred, carried: the gradients by the states before in two parts: terms that products return, which the
            next step adds up, and the sum of the others.
    """

    def __init__(self, gradient: Gradient) -> None:
        self.gradient, self.program = gradient, gradient.program
        self.kept, self.marks = tuple(gradient.numbers), tuple(gradient.marks)
        self.again = tuple(gradient.again)
        outputs = [v for views in gradient.outputs if views for blocks in views for v in blocks]
        self.rest = tuple(dict.fromkeys(v for v in outputs if v not in gradient.a))
        self.parameters = tuple(tuple(_inside(v) for v in blocks) for blocks in gradient.parameters)
        returned = set(flat(gradient.returned))
        self.deferred: list[list[list[Node]]] = []
        self.carried: list[list[Node | None]] = []
        for blocks in gradient.states:
            parts = [list(terms(v)) for v in blocks]
            self.deferred.append([[v for v in part if v in returned] for part in parts])
            self.carried.append(
                [
                    self.total([v for v in part if v not in returned], b.width)
                    for part, b in zip(parts, blocks, strict=True)
                ]
            )

    def total(self, parts: list[Node], width: int) -> Node | None:
        """The sum of some nodes of one width; None for zero."""
        graph = self.program.graph
        total = None
        for v in parts:
            total = v if total is None else graph.make("add", total, v)
        if total is None or is_zero(total):
            return None
        return graph.widened(total, width)

    def state_moves(self, index: int) -> bool:
        """Whether any gradient reaches state `index` before the first step."""
        return any(d or c is not None for d, c in zip(self.deferred[index], self.carried[index], strict=True))

    def inputs(self, p: int) -> Place | None:
        """Where the inputs of product p are stored side by side; None where they have to be joined."""
        program, nodes = self.program, self.program.products[p].inputs
        rows = [("before", i, blocks) for i, blocks in enumerate(program.states)]
        rows += [("state", i, blocks) for i, blocks in enumerate(program.new)]
        rows += [("a", 0, program.a), ("kept", 0, self.kept)]
        return _find(nodes, rows)

    def outputs(self, p: int, view: int) -> list[tuple[Place, tuple[Node, ...]]]:
        """Where the gradients by the outputs of one view are stored, in runs of adjacent blocks."""
        views = self.gradient.outputs[p]
        assert views is not None
        left, runs = views[view], []
        while left:
            for length in range(len(left), 0, -1):
                place = self.gradients(left[:length])
                if place is not None:
                    runs.append((place, left[:length]))
                    left = left[length:]
                    break
            else:
                raise AssertionError("every gradient by an output is stored")
        return runs

    def gradients(self, nodes: Sequence[Node]) -> Place | None:
        """Where gradients are stored side by side; None where they are not."""
        return _find(tuple(nodes), [("d_a", 0, self.gradient.a), ("d_rest", 0, self.rest)])

    @cached_property
    def added(self) -> list[Node]:
        """Nodes that the backward pass sums for the gradients by parameters; stored gradients are not among them."""
        listed = [v for blocks in self.parameters for v in blocks if not is_zero(v)]
        return list(dict.fromkeys(v for v in listed if self.gradients([v]) is None))

    @cached_property
    def views(self) -> list[tuple[int, int, View]]:
        """Product, number in it, and view, for all views."""
        return [(p, n, view) for p, product in enumerate(self.program.products) for n, view in enumerate(product.views)]


def _find(nodes: Sequence[Node], rows: Sequence[tuple[str, int, tuple[Node, ...]]]) -> Place | None:
    for array, index, row in rows:
        for at in range(len(row) - len(nodes) + 1):
            if row[at : at + len(nodes)] == tuple(nodes):
                return Place(array, index, row[:at], row)
    return None


def _inside(node: Node) -> Node:
    """The summand of a sum over units, which a parameter's gradient sums over rows and steps too."""
    return node.args[0] if node.op == "sum" else node


def is_zero(node: Node) -> bool:
    """Whether a node is the constant zero, of any width."""
    return (node.op == "const" and node.args[0] == 0) or (node.op == "wide" and is_zero(node.args[0]))


def layout(program: Program) -> tuple[int, ...]:
    """The different widths of a step's blocks, in the order in which they appear."""
    read = [*flat(program.states), *program.a, *program.nodes()]
    unread = [*flat(out for product in program.products for out in product.outputs), *flat(program.parameters)]
    widths = dict.fromkeys(v.width for v in [*read, *unread])
    return tuple(widths)
