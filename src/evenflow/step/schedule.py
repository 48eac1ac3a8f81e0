"""The order of work in one step: matrix products, and between them passes over the units of a row.

A product needs its inputs of all units, and a sum over units needs all summands, so their readers are in a later pass.
Everything else is computed in the first pass in which it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from evenflow.step.graph import EXPENSIVE, Node

Level = tuple[int, int]  # products before it, then sums since the last of them


@dataclass(frozen=True)
class PassProduct:
    """A product: its number, its inputs and its outputs."""

    number: int
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


@dataclass
class Pass:
    """One pass over the units of every row.

    Attributes:
        roots: nodes that are computed and stored.
        sums: reductions that it computes.
        saved: computed nodes that a later pass reads instead of recomputing them.
    """

    level: Level
    roots: list[Node] = field(default_factory=list)
    sums: list[Node] = field(default_factory=list)
    saved: list[Node] = field(default_factory=list)


@dataclass
class Phase:
    """Products, and the passes that follow them."""

    products: list[int]
    passes: list[Pass]


class Schedule:
    """The phases of one direction.

    Args:
        products: in any order.
        targets: the nodes to store.
        leaf: whether a node is available from the start.
        definitions: outputs of products that are computed from others, with the node that each of them is.
    """

    def __init__(
        self,
        products: Sequence[PassProduct],
        targets: Iterable[Node],
        leaf: Callable[[Node], bool],
        definitions: Mapping[Node, Node] | None = None,
    ) -> None:
        self._leaf, self._definitions = leaf, definitions or {}
        self._product_of = {v: m for m in products for v in m.outputs}
        self._levels: dict[Node, Level] = {}
        roots = list(dict.fromkeys(targets))
        for m in products:
            roots += [v for v in m.inputs if v not in roots and not leaf(v)]
        passes: dict[Level, Pass] = {}
        for v in roots:
            passes.setdefault(self.level(v), Pass(self.level(v))).roots.append(v)
        for v in self._sums(roots):
            level = self.level(v.args[0])
            passes.setdefault(level, Pass(level)).sums.append(v)
        before = {m.number: max((self.level(v)[0] for v in m.inputs), default=0) for m in products}
        self.phases: list[Phase] = []
        last = max([level[0] for level in passes] + [p + 1 for p in before.values()], default=0)
        for p in range(last + 1):
            inside = [passes[level] for level in sorted(passes) if level[0] == p]
            self.phases.append(Phase([n for n, at in before.items() if at == p - 1], inside))
        self._save(roots)

    def level(self, node: Node) -> Level:
        if node not in self._levels:
            stack = [node]
            while stack:
                v = stack[-1]
                below = () if self._leaf(v) else self._operands(v)
                below = self._product_of[v].inputs if v in self._product_of else below
                missing = [u for u in below if u not in self._levels]
                if missing:
                    stack.extend(missing)
                    continue
                stack.pop()
                highest = max((self._levels[u] for u in below), default=(0, 0))
                if v in self._product_of:
                    highest = (highest[0] + 1, 0)
                elif v.op in ("sum", "amax") and not self._leaf(v):
                    highest = (highest[0], highest[1] + 1)
                self._levels[v] = highest
        return self._levels[node]

    def _operands(self, v: Node) -> tuple[Node, ...]:
        return (self._definitions[v],) if v in self._definitions else v.operands

    def passes(self) -> list[Pass]:
        return [each for phase in self.phases for each in phase.passes]

    def _sums(self, roots: Sequence[Node]) -> list[Node]:
        sums: dict[Node, None] = {}
        seen: set[Node] = set()
        stack = list(roots)
        while stack:
            v = stack.pop()
            if v in seen or self._leaf(v) or v in self._product_of:
                continue
            seen.add(v)
            if v.op in ("sum", "amax"):
                sums[v] = None
            stack.extend(self._operands(v))
        return sorted(sums, key=lambda v: v.id)

    def _save(self, roots: Sequence[Node]) -> None:
        """Let the first of two passes store an expensive node that both would compute."""
        stored = set(roots)
        first: dict[Node, Pass] = {}
        for each in self.passes():
            for v in self.computed(each, {**{u: None for u in stored if self.level(u) < each.level}}):
                if v.op not in EXPENSIVE or v in stored or v.op in ("sum", "amax"):
                    continue
                if v not in first:
                    first[v] = each
                elif v not in first[v].saved and first[v] is not each:
                    first[v].saved.append(v)

    def computed(self, each: Pass, known: Mapping[Node, object]) -> list[Node]:
        """The nodes that a pass computes if some are known before it; operands first."""
        nodes: set[Node] = set()
        stack = [*each.roots, *(v.args[0] for v in each.sums), *each.saved]
        while stack:
            v = stack.pop()
            if v in nodes or v in known or self._leaf(v) or v in self._product_of:
                continue
            if v.op in ("sum", "amax"):  # computed by a pass before
                continue
            nodes.add(v)
            stack.extend(self._operands(v))
        return sorted(nodes, key=lambda v: v.id)
