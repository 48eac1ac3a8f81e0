"""Which numbers of a step the forward pass keeps for the backward pass, and which the backward pass recomputes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from evenflow.step.graph import EXPENSIVE, Node, ordered
from evenflow.step.program import flat

if TYPE_CHECKING:
    from evenflow.step.differentiate import Gradient

# The cost of one number in both passes, in units of reading it from memory. Marks take a byte.
KEPT, KEPT_MARK, READ_STATE, READ_INPUT, EXPENSIVE_AGAIN, CHEAP_AGAIN = 2.0, 0.6, 0.4, 1.0, 1.2, 0.05
LEAST = 1e-9  # the smallest difference in cost that counts
MANY_OUTPUTS = 2  # kept for each input of a product, from which on they are computed again
MANY = 200  # candidates from which on the first improvement is taken instead of the best


def choose_kept(gradient: Gradient) -> list[Node]:
    """The nodes to keep; blocks that go into one product come side by side.

    Products cannot be recomputed; tanh and similar operations can, but cost about as much as reading a number. One
    search starts with all of these, another with what the backward pass reads first. Each replaces one node at a time
    by a neighbour, or by all nodes that read it, as long as that lowers the cost.
    """
    search = _Search(gradient)
    kept = min((search.descend(start) for start in search.starts()), key=search.cost)
    read = search.read(kept)
    groups = [v for v in dict.fromkeys(gradient.of_products()) if v in search.fixed]
    return [*groups, *sorted((kept & read) - search.fixed, key=lambda v: v.id)]


def computed_again(gradient: Gradient) -> list[Node]:
    """Kept outputs of products that are computed again before the backward pass, for all steps in one product.

    The inputs must lie side by side in a state, which is stored anyway, and the outputs must be at least
    `MANY_OUTPUTS` times as many numbers.
    """
    program, kept = gradient.program, set(gradient.kept) - set(gradient.of_products())
    again: list[Node] = []
    for product in program.products:
        outputs = [v for v in flat(product.outputs) if v in kept]
        if any(_adjacent(product.inputs, blocks) for blocks in program.states) and _size(
            outputs
        ) >= MANY_OUTPUTS * _size(product.inputs):
            again += outputs
    return again


def _adjacent(nodes: Sequence[Node], blocks: Sequence[Node]) -> bool:
    length = len(nodes)
    return any(tuple(blocks[n : n + length]) == tuple(nodes) for n in range(len(blocks)))


def _size(nodes: Iterable[Node]) -> int:
    return sum(v.width for v in nodes)


class _Search:
    """A local search over sets of kept nodes; `fixed` nodes are in all of them."""

    def __init__(self, gradient: Gradient) -> None:
        program = gradient.program
        self._roots = gradient.targets()
        # What is stored anyway, with the cost of reading it.
        self._given = dict.fromkeys(flat(program.states), READ_STATE)
        self._given |= {v: READ_STATE for v in flat(program.new) if v not in self._given}
        self._given |= dict.fromkeys((*program.a, *program.resets), READ_INPUT)
        self._given |= dict.fromkeys(flat(program.parameters), 0.0)
        self._products = {v for product in program.products for out in product.outputs for v in out}
        parameters = set(flat(program.parameters))  # which have no row for each step
        self.fixed = {v for v in gradient.of_products() if v not in self._given or v in parameters}
        everything = ordered([*self._roots, *program.nodes()])
        self._widest = max((v.width for v in everything), default=1)
        self._forward = _without_gradients(everything, {*self._given, *self._products})
        self._candidates = [v for v in everything if v in self._forward and v not in self._given and v.op != "const"]
        self._among = set(self._candidates)
        self._readers: dict[Node, list[Node]] = {}
        for v in self._candidates:
            for u in v.operands:
                self._readers.setdefault(u, []).append(v)
        self._prices = {v: self._priced(v) for v in everything}

    def starts(self) -> list[set[Node]]:
        candidates = set(self._candidates)
        read_first = {u for v in ordered(self._roots) if v not in self._forward for u in v.operands if u in candidates}
        dear = {v for v in self._candidates if v in self._products or v.op in EXPENSIVE}
        return [dear | self.fixed, read_first | self.fixed]

    def descend(self, kept: set[Node]) -> set[Node]:
        best = self.cost(kept)
        while len(self._candidates) > MANY:
            before = best
            for v in self._candidates:
                changes = [] if v in self.fixed else [kept ^ {v}]
                for other in [*changes, *(self._traded(kept, v) if v in kept - self.fixed else [])]:
                    if (cost := self.cost(other)) < best - LEAST:
                        best, kept = cost, other
                        break
            if best == before:
                return kept
        while True:
            options = [(self.cost(other), n, other) for n, other in enumerate(self.near(kept))]
            cost, _, other = min(options, default=(best, 0, kept), key=lambda o: o[:2])
            if cost >= best - LEAST:
                return kept
            best, kept = cost, other

    def cost(self, kept: set[Node]) -> float:
        total, prices, stack = 0.0, self._prices, list(self._roots)
        seen = set(stack)
        while stack:
            v = stack.pop()
            if_kept, if_given, again, operands = prices[v]
            if v in kept:
                total += if_kept
            elif if_given is not None:
                total += if_given
            else:
                total += again
                for u in operands:
                    if u not in seen:
                        seen.add(u)
                        stack.append(u)
        return total

    def _priced(self, v: Node) -> tuple[float, float | None, float, tuple[Node, ...]]:
        """The cost of a node if it is kept, if it is stored anyway, and if it is recomputed; and its operands."""
        share = v.width / self._widest
        if_kept = share * (READ_STATE if v in self.fixed else KEPT_MARK if v.is_mark else KEPT)
        if_given = share * self._given[v] if v in self._given else None
        again = 0.0
        if v in self._products:
            again = math.inf
        elif v in self._forward and v.op != "const":
            again = share * (EXPENSIVE_AGAIN if v.op in EXPENSIVE else CHEAP_AGAIN)
        return if_kept, if_given, again, v.operands

    def near(self, kept: set[Node]) -> Iterable[set[Node]]:
        for v in self._candidates:
            if v not in self.fixed:
                yield kept ^ {v}
        for u in [v for v in self._candidates if v in kept and v not in self.fixed]:
            yield from self._traded(kept, u)

    def _traded(self, kept: set[Node], u: Node) -> Iterable[set[Node]]:
        """Sets with a neighbour of u instead of u, or with all nodes that read u."""
        readers = self._readers.get(u, [])
        for v in (*readers, *(w for w in u.operands if w in self._among)):
            if v not in kept:
                yield kept ^ {u, v}
        yield (kept - {u}) | set(readers)
        yield (kept - {u}) | {w for v in readers for w in self._readers.get(v, [])}

    def read(self, kept: set[Node]) -> set[Node]:
        """The nodes that the backward pass reads."""
        seen: set[Node] = set()
        stack = list(self._roots)
        while stack:
            v = stack.pop()
            if v not in seen:
                seen.add(v)
                if v not in kept and v not in self._given:
                    stack.extend(v.operands)
        return seen


def _without_gradients(nodes: list[Node], leaves: set[Node]) -> set[Node]:
    """The nodes that depend on no gradient."""
    free: set[Node] = set()
    for v in nodes:  # operands come first
        computed = v.op not in ("input", "product") and all(u in free for u in v.operands)
        if v in leaves or v.op == "const" or computed:
            free.add(v)
    return free
