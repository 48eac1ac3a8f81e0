"""Where the numbers of a step lie: the arrays that both passes write, and what weight gradients are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from evenflow.step.differentiate import Gradient
from evenflow.step.graph import Node, View, terms
from evenflow.step.program import Program, flat


@dataclass(frozen=True)
class Place:
    """Some blocks side by side in an array: which array, and the blocks that stand before them in a row.

    Args:
        array: ``"a"``, ``"before"`` and ``"state"`` (the state before and after the step), ``"kept"``; of the backward
            pass ``"d_a"`` and ``"d_rest"``.
        index: which state.
        skipped: blocks of the row before the first.
        row: all blocks of the row.
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
        kept, marks: what the forward pass stores besides the states, numbers and bytes.
        rest: gradients by outputs of products that are not gradients by blocks of a, too.
        parameters: for each block of a parameter what is added up over all steps and rows to get its gradient.
    """

    def __init__(self, gradient: Gradient) -> None:
        self.gradient, self.program = gradient, gradient.program
        self.kept, self.marks = tuple(gradient.numbers), tuple(gradient.marks)
        outputs = [v for views in gradient.outputs if views for blocks in views for v in blocks]
        self.rest = tuple(dict.fromkeys(v for v in outputs if v not in gradient.a))
        self.parameters = tuple(tuple(_inside(v) for v in blocks) for blocks in gradient.parameters)
        # Of the gradients by the state before, what products return is added up when the next step reads it.
        returned = set(flat(gradient.returned))
        self.deferred: list[list[list[Node]]] = []
        self.carried: list[list[Node | None]] = []
        for blocks in gradient.states:
            parts = [list(terms(v)) for v in blocks]
            self.deferred.append([[v for v in part if v in returned] for part in parts])
            self.carried.append(
                [
                    self._sum([v for v in part if v not in returned], b.width)
                    for part, b in zip(parts, blocks, strict=True)
                ]
            )

    def _sum(self, parts: list[Node], width: int) -> Node | None:
        graph = self.program.graph
        total = None
        for v in parts:
            total = v if total is None else graph.make("add", total, v)
        if total is None or _is_zero(total):
            return None
        return graph.widened(total, width)

    def state_moves(self, index: int) -> bool:
        """Whether any gradient reaches state `index` before the first step."""
        return any(d or c is not None for d, c in zip(self.deferred[index], self.carried[index], strict=True))

    def inputs(self, p: int) -> Place | None:
        """Where what goes into product p lies side by side once the step is done; None where it has to be joined."""
        program, wanted = self.program, self.program.products[p].inputs
        rows = [("before", i, blocks) for i, blocks in enumerate(program.states)]
        rows += [("state", i, blocks) for i, blocks in enumerate(program.new)]
        rows += [("a", 0, program.a), ("kept", 0, self.kept)]
        return _found(wanted, rows)

    def outputs(self, p: int, view: int) -> list[tuple[Place, tuple[Node, ...]]]:
        """Where the gradients by the outputs of one view lie, in runs of blocks."""
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
        return _found(tuple(nodes), [("d_a", 0, self.gradient.a), ("d_rest", 0, self.rest)])

    @cached_property
    def added(self) -> list[Node]:
        """What the backward pass adds up for the gradients by parameters, unless it is stored for other reasons."""
        listed = [v for blocks in self.parameters for v in blocks if not _is_zero(v)]
        return list(dict.fromkeys(v for v in listed if self.gradients([v]) is None))

    @cached_property
    def views(self) -> list[tuple[int, int, View]]:
        """Product, number and view of all products."""
        return [(p, n, view) for p, product in enumerate(self.program.products) for n, view in enumerate(product.views)]


def _found(wanted: Sequence[Node], rows: Sequence[tuple[str, int, tuple[Node, ...]]]) -> Place | None:
    for array, index, row in rows:
        for at in range(len(row) - len(wanted) + 1):
            if row[at : at + len(wanted)] == tuple(wanted):
                return Place(array, index, row[:at], row)
    return None


def _inside(node: Node) -> Node:
    """Of a sum over units what is summed: parameters sum over rows and steps too, all at the end."""
    return node.args[0] if node.op == "sum" else node


def _is_zero(node: Node) -> bool:
    return (node.op == "const" and node.args[0] == 0) or (node.op == "wide" and _is_zero(node.args[0]))


def layout(program: Program) -> tuple[int, ...]:
    """The different widths of a step's blocks, in the order in which they appear."""
    read = [*flat(program.states), *program.a, *program.nodes()]
    unread = [*flat(out for product in program.products for out in product.outputs), *flat(program.parameters)]
    widths = dict.fromkeys(v.width for v in [*read, *unread])
    return tuple(widths)
