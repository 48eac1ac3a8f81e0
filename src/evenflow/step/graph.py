"""The graph of one step: nodes are pointwise operations, sums over the units of a row, and matrix products.

A node stands for one block of a row, ``width`` numbers, with the same operation for each of them. The step decides the
widths: the four gates of an LSTM are four blocks of H, a pair activation splits the state into two blocks of H / 2, and
a number per row is a block of width 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Operations that cost about as much as reading a number from memory; the others cost next to nothing.
EXPENSIVE = frozenset({"tanh", "sigmoid", "exp", "expm1", "log", "log1p", "sin", "cos", "sqrt", "erf", "sum", "amax"})
# Operations with results -1, 0 or 1, which fit into a byte.
MARKS = frozenset({"sign", "positive", "less", "less_equal", "equal"})
COMMUTATIVE = frozenset({"add", "mul", "max", "min", "equal"})


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One operation on blocks of one width.

    Args:
        op: its name; ``"input"`` and ``"product"`` are leaves.
        args: the operands; of a leaf or a constant its identity.
        width: numbers in the block; an operand of width 1 is broadcast.
        id: number in the order of creation: operands have smaller ids.
    """

    op: str
    args: tuple[Any, ...]
    width: int
    id: int

    @property
    def operands(self) -> tuple[Node, ...]:
        return tuple(v for v in self.args if isinstance(v, Node)) if self.op not in ("input", "product") else ()

    @property
    def is_mark(self) -> bool:
        return self.op in MARKS or (self.op == "mul" and all(v.is_mark for v in self.operands))

    def __repr__(self) -> str:
        shown = ", ".join(f"n{v.id}" if isinstance(v, Node) else repr(v) for v in self.args)
        return f"n{self.id}: {self.op}({shown}) x {self.width}"


@dataclass(frozen=True, slots=True)
class View:
    """The part of a matrix that a product reads: rows ``[row, row + rows)``, columns ``[column, column + columns)``.

    The product is ``x W[part].mT``, or ``x W[part]`` where `transposed`.
    """

    matrix: int
    transposed: bool
    row: int
    rows: int
    column: int
    columns: int

    @property
    def depth(self) -> int:
        return self.rows if self.transposed else self.columns

    @property
    def height(self) -> int:
        return self.columns if self.transposed else self.rows


@dataclass(eq=False)
class Product:
    """One product of a step: the same input times one or several matrices.

    Args:
        inputs: the input's blocks, side by side.
        detached: no gradient passes to the input.
        views: the matrices.
        outputs: for each matrix the leaves of its result.
    """

    inputs: tuple[Node, ...]
    detached: bool = False
    views: list[View] = field(default_factory=list)
    outputs: list[tuple[Node, ...]] = field(default_factory=list)


class Graph:
    """Makes nodes. Two nodes that compute the same are one object, and constants are folded."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Any, ...], Node] = {}

    def leaf(self, op: str, *args: Any, width: int) -> Node:
        return self._node((op, *args, width), op, args, width)

    def const(self, value: float) -> Node:
        value = float(value)
        return self._node(("const", math.copysign(1, value), repr(value)), "const", (value,), 1)

    def reduce(self, op: str, x: Node) -> Node:
        """``sum`` or ``amax`` over the numbers of a block: a number per row."""
        if x.width == 1:
            return x
        if op == "sum" and x.op == "const":
            return self.const(x.args[0] * x.width)
        return self._node((op, x), op, (x,), 1)

    def widened(self, x: Node, width: int) -> Node:
        """x broadcast to `width` numbers."""
        return x if x.width == width else self._node(("wide", x, width), "wide", (x,), width)

    def computed(self, x: Node) -> Node:
        """x, or a copy of a parameter or a constant: the input of a product is stored for each row."""
        uncomputed = x.op == "const" or (x.op == "input" and x.args[0] == "parameter")
        return self._node(("wide", x, x.width), "wide", (x,), x.width) if uncomputed else x

    def make(self, op: str, *args: Node | float) -> Node:
        nodes = [v if isinstance(v, Node) else self.const(v) for v in args]
        if op in COMMUTATIVE:
            nodes.sort(key=lambda v: (v.op != "const", v.id))
        if (simple := self._simplified(op, nodes)) is not None:
            return simple
        width = max(v.width for v in nodes)
        return self._node((op, *nodes), op, tuple(nodes), width)

    def _node(self, key: tuple[Any, ...], op: str, args: tuple[Any, ...], width: int) -> Node:
        if key not in self._nodes:
            self._nodes[key] = Node(op, args, width, len(self._nodes))
        return self._nodes[key]

    def _simplified(self, op: str, v: list[Node]) -> Node | None:
        """An existing node or a constant that is equal; None if there is none."""
        values = [node.args[0] if node.op == "const" else None for node in v]
        if None not in values and op in FOLDED:
            try:
                return self.const(FOLDED[op](*values))
            except (ArithmeticError, ValueError):
                return None
        first = values[0]
        match op:
            case "add" if first == 0:
                return v[1]
            case "sub" if values[1] == 0:
                return v[0]
            case "sub" if first == 0:
                return self.make("neg", v[1])
            case "mul" if first == 1:
                return v[1]
            case "mul" if first == 0:
                return v[0]  # also where the other factor is not finite: a detached gradient is zero
            case "mul" if first == -1:
                return self.make("neg", v[1])
            case "div" if values[1] == 1:
                return v[0]
            case "div" if first == 0:
                return v[0]
            case "neg" if v[0].op == "neg":
                return v[0].args[0]
            case "where" if v[1] is v[2]:
                return v[1]
            case "positive" if v[0].op in ("relu", "positive"):
                return self.make("positive", v[0].args[0]) if v[0].op == "positive" else None
            case "add" if v[0].op == v[1].op == "sum" and v[0].args[0].width == v[1].args[0].width:
                return self.reduce("sum", self.make("add", v[0].args[0], v[1].args[0]))
        return None


def _sign(x: float) -> float:
    return float((x > 0) - (x < 0))


# Operations on constants.
FOLDED: Mapping[str, Callable[..., float]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "tanh": math.tanh,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
    "abs": abs,
    "relu": lambda x: max(x, 0.0),
    "sign": _sign,
    "positive": lambda x: float(x > 0),
    "less": lambda x, y: float(x < y),
    "less_equal": lambda x, y: float(x <= y),
    "equal": lambda x, y: float(x == y),
    "max": max,
    "min": min,
    "where": lambda c, x, y: x if c else y,
}


def ordered(roots: Iterable[Node]) -> list[Node]:
    """All nodes that the roots are computed from, operands first."""
    nodes: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in nodes:
            nodes[node] = None
            stack.extend(node.operands)
    return sorted(nodes, key=lambda v: v.id)


def terms(node: Node) -> Iterator[Node]:
    """The terms of a sum."""
    if node.op == "add" and all(v.width == node.width for v in node.operands):
        for v in node.operands:
            yield from terms(v)
    else:
        yield node
