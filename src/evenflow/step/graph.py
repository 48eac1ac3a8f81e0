"""The graph of one step: nodes are pointwise operations, sums over the units of a row, and matrix products.

A node stands for one block of a row: ``width`` numbers, the same operation for each of them. Blocks are as long as the
step makes them: the four gates of an LSTM are four blocks of H, a pair activation splits the state into two of H / 2,
and a number per row is a block of width 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Operations that cost about as much as reading a number from memory; the others cost next to nothing.
EXPENSIVE = frozenset({"tanh", "sigmoid", "exp", "expm1", "log", "log1p", "sin", "cos", "sqrt", "erf", "sum", "amax"})
# Results are -1, 0 or 1, so that a byte holds one.
MARKS = frozenset({"sign", "positive", "less", "less_equal", "equal"})
COMMUTATIVE = frozenset({"add", "mul", "max", "min", "equal"})


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One operation on blocks of one width.

    Args:
        op: its name; ``"input"`` and ``"product"`` are leaves whose numbers come from elsewhere.
        args: nodes, and for leaves and constants what says which one it is.
        width: numbers in the block; an operand of width 1 is used for each number.
        id: in the order of creation, so that an operand has a smaller one.
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
    """A part of a matrix argument, as a product uses it: rows ``[row, row + rows)``, columns ``[column, ...)``.

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
    """One product of a step: the same input blocks times some matrices, whose results stand side by side.

    Args:
        inputs: blocks that go in, side by side.
        views: the matrices.
        detached: no gradient passes through it to what goes in.
        outputs: for each matrix the leaves of its result.
    """

    inputs: tuple[Node, ...]
    detached: bool = False
    views: list[View] = field(default_factory=list)
    outputs: list[tuple[Node, ...]] = field(default_factory=list)


class Graph:
    """Makes nodes; two that compute the same are one object, and what is known beforehand is computed at once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Node] = {}

    def leaf(self, op: str, *args: Any, width: int) -> Node:
        return self._made((op, *args, width), op, args, width)

    def const(self, value: float) -> Node:
        value = float(value)
        return self._made(("const", math.copysign(1, value), repr(value)), "const", (value,), 1)

    def reduce(self, op: str, x: Node) -> Node:
        """``sum`` or ``amax`` over the numbers of a block: a number per row."""
        if x.width == 1:
            return x
        if op == "sum" and x.op == "const":
            return self.const(x.args[0] * x.width)
        return self._made((op, x), op, (x,), 1)

    def widened(self, x: Node, width: int) -> Node:
        """x for each of `width` numbers."""
        return x if x.width == width else self._made(("wide", x, width), "wide", (x,), width)

    def computed(self, x: Node) -> Node:
        """x, or a copy of it where it is a parameter or a constant: what a product takes is stored row by row."""
        unmade = x.op == "const" or (x.op == "input" and x.args[0] == "parameter")
        return self._made(("wide", x, x.width), "wide", (x,), x.width) if unmade else x

    def make(self, op: str, *args: Node | float) -> Node:
        nodes = [v if isinstance(v, Node) else self.const(v) for v in args]
        if op in COMMUTATIVE:
            nodes.sort(key=lambda v: (v.op != "const", v.id))
        if (simple := self._simplified(op, nodes)) is not None:
            return simple
        width = max(v.width for v in nodes)
        return self._made((op, *nodes), op, tuple(nodes), width)

    def _made(self, key: tuple[Any, ...], op: str, args: tuple[Any, ...], width: int) -> Node:
        if key not in self._known:
            self._known[key] = Node(op, args, width, len(self._known))
        return self._known[key]

    def _simplified(self, op: str, v: list[Node]) -> Node | None:
        """A node there is already, or a constant, that is the same."""
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
                return v[0]  # of finite numbers; a gradient that is cut off is zero whatever it would be times
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


# What a computer works out once, from constants.
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
    found: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack.extend(node.operands)
    return sorted(found, key=lambda v: v.id)


def terms(node: Node) -> Iterator[Node]:
    """What a sum consists of."""
    if node.op == "add" and all(v.width == node.width for v in node.operands):
        for v in node.operands:
            yield from terms(v)
    else:
        yield node
