"""A step as plain data: `translate` traces it and lowers the trace to a graph of blocks, a `Program`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from evenflow.step.graph import Graph, Node, Product, View, ordered
from evenflow.step.operations import OPERATIONS, POINTWISE
from evenflow.step.trace import ROWS, NumberNeeded, Tracer, Untranslatable, Value

MOST_BLOCKS = 64  # of one tensor; a step that cuts its state into more is left to the loop
Blocks = tuple[Node, ...]


def flat(several: Iterable[Blocks]) -> list[Node]:
    """All blocks of several tensors in one list."""
    return [v for blocks in several for v in blocks]


@dataclass(eq=False)
class Program:
    """One step: ``new states = step(a, states, matrices, parameters)``, all of them in blocks.

    Attributes:
        graph: makes more nodes of the same kind.
        a, states, parameters: the leaves, by argument; a parameter that is absent has no blocks.
        matrices: rows and columns of each.
        products: the matrix products, each after those that it depends on.
        new: the blocks of the new states.
        derived: the last parameters, as nodes of those before them; see `hoist`.
        resets: the leaf that says whether a row restarts, or nothing; see `restart`.
    """

    graph: Graph
    a: Blocks
    states: tuple[Blocks, ...]
    parameters: tuple[Blocks, ...]
    matrices: tuple[tuple[int, int], ...]
    products: list[Product]
    new: tuple[Blocks, ...]
    derived: Blocks = ()
    resets: Blocks = ()

    def nodes(self) -> list[Node]:
        """All nodes of the step, operands first."""
        return self.through([v for blocks in self.new for v in blocks])

    def restarts(self, product: Product) -> bool:
        """Return True if the input of a product is zero in rows that restart, though the states before are stored."""
        return bool(self.resets) and set(product.inputs) <= set(flat(self.states))

    def through(self, roots: Sequence[Node]) -> list[Node]:
        """All nodes that the roots are computed from, through matrix products too; operands and their inputs first."""
        inputs = {v: product.inputs for product in self.products for out in product.outputs for v in out}
        nodes = ordered(roots)
        while True:
            read = dict.fromkeys(u for v in nodes for u in inputs.get(v, ()))
            more = ordered([*roots, *read])
            if len(more) == len(nodes):
                break
            nodes = more
        # In the order of creation, unless the inputs of a product were replaced after its outputs were made.
        placed: dict[Node, None] = {}
        stack = [(v, False) for v in reversed(nodes)]
        while stack:
            v, ready = stack.pop()
            if ready:
                placed[v] = None
            elif v not in placed:
                stack.append((v, True))
                stack.extend((u, False) for u in (*inputs.get(v, ()), *v.operands) if u not in placed)
        return list(placed)


def translate(
    step: Callable[..., object],
    a: int,
    states: Sequence[int],
    matrices: Sequence[tuple[int, int]],
    parameters: Sequence[int | None],
    name: str = "the step",
) -> Program:
    """The program of ``step(a, *states, *matrices, *parameters)``.

    Args:
        step: returns the new state, or a tuple of them, in torch operations on ``(B, size)`` tensors.
        a, states, parameters: sizes; None for a parameter that the step is called without.
        matrices: shapes.
        name: the cell's name in messages.

    Raises:
        Untranslatable: the step has an operation that `operations` does not list.
        ValueError: the step fails, decides on the value of a tensor, or returns other states than it takes.
    """
    function = step.func if isinstance(step, functools.partial) else getattr(step, "__func__", step)
    tracer = Tracer(inspect.unwrap(function).__code__, OPERATIONS, POINTWISE)
    with torch.no_grad():
        arguments: list[Tensor | None] = []
        leaves: list[Value | None] = []
        for kind, sizes in (("a", [a]), ("state", states), ("parameter", parameters)):
            for i, size in enumerate(sizes):
                shape = (ROWS, size) if kind != "parameter" else (size,)
                tensor = None if size is None else torch.zeros(shape, device="cpu")  # type: ignore[arg-type]
                leaf = None if size is None else Value("leaf", (), size, (kind, i))
                if tensor is not None and leaf is not None:
                    tracer.bind(tensor, leaf)
                arguments.append(tensor)
                leaves.append(leaf)
        held = [torch.empty(shape, device="meta") for shape in matrices]
        for i, tensor in enumerate(held):
            tracer.bind(tensor, View(i, False, 0, matrices[i][0], 0, matrices[i][1]))
        count = 1 + len(states)
        try:
            with tracer, torch.autocast("cpu", enabled=False):
                result = step(*arguments[:count], *held, *arguments[count:])
        except (Untranslatable, NumberNeeded):
            raise
        except Exception as error:
            if tracer.refused is not None:  # what follows ran on matrices without numbers
                raise tracer.refused from error
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"the step of {name} fails at {tracer.error_line(error)}: {reason}") from error
    returned = _checked(name, result, states)
    if tracer.refused is not None:
        raise tracer.refused
    new = [tracer.of(v) for v in returned]
    for i, value in enumerate(new):
        if isinstance(value, View):
            raise ValueError(f"state {i} that the step of {name} returns must be computed by the step, got a matrix")
    return _lowered(new, leaves, matrices, len(states))


def _checked(name: str, result: object, states: Sequence[int]) -> list[Tensor]:
    """The new states; refuse a result of another number or shape."""
    several = list(result) if isinstance(result, tuple | list) else [result]
    if len(several) != len(states):
        count = f"{len(states)} state{'s' if len(states) > 1 else ''}"
        raise ValueError(f"the step of {name} must return {count}, as many as it takes, got {len(several)}")
    for i, (tensor, size) in enumerate(zip(several, states, strict=True)):
        if not isinstance(tensor, Tensor) or tensor.shape != (ROWS, size):
            got = f"shape (B, {', '.join(map(str, tensor.shape[1:]))})" if isinstance(tensor, Tensor) else repr(tensor)
            raise ValueError(f"state {i} that the step of {name} returns must have shape (B, {size}), got {got}")
    return several  # type: ignore[return-value]


def _lowered(new: list[Value], leaves: list[Value | None], matrices: Sequence[tuple[int, int]], states: int) -> Program:
    values = _all(new, [v for v in leaves if v is not None])
    lower = _Lowering(_cuts(values, list(zip(new, leaves[1 : 1 + states], strict=True))))
    blocks = tuple(() if leaf is None else lower(leaf) for leaf in leaves)
    ends = tuple(lower(v) for v in new)
    program = Program(
        lower.graph, blocks[0], blocks[1 : 1 + states], blocks[1 + states :], tuple(matrices), lower.products, ends
    )
    used = set(program.nodes())
    program.products = [p for p in lower.products if any(v in used for out in p.outputs for v in out)]
    return program


def _all(roots: Sequence[Value], leaves: Sequence[Value]) -> list[Value]:
    """All values that the roots are computed from, inputs first."""
    values: dict[Value, None] = dict.fromkeys(leaves)

    def visit(v: Value) -> None:
        stack = [(v, False)]
        while stack:
            value, ready = stack.pop()
            if value in values:
                continue
            if ready:
                values[value] = None
            else:
                stack.append((value, True))
                stack.extend((u, False) for u in value.inputs)

    for root in roots:
        visit(root)
    return list(values)


def _cuts(values: list[Value], same: list[tuple[Value, Value | None]]) -> dict[Value, set[int]]:
    """Where each value is cut into blocks: where a slice or `cat` cuts it, or cuts a value that it is combined with.

    Args:
        same: pairs of a new state and the state before, which are cut in the same places.
    """
    cuts: dict[Value, set[int]] = {v: set() for v in values}

    def alike(x: Value, y: Value, offset: int = 0) -> bool:
        """Share the cuts of x and y, where number n of y is number offset + n of x; whether there were new ones."""
        down = {offset + c for c in cuts[y]} | {c for c in (offset, offset + y.size) if 0 < c < x.size}
        up = {c - offset for c in cuts[x] if 0 < c - offset < y.size}
        grows = not (down <= cuts[x] and up <= cuts[y])
        cuts[x] |= down
        cuts[y] |= up
        return grows

    grows = True
    while grows:
        grows = False
        for v in values:
            match v.op:
                case "slice":
                    grows |= alike(v.inputs[0], v, v.extra)
                case "cat":
                    at = 0
                    for u in v.inputs:
                        grows |= alike(v, u, at)
                        at += u.size
                case "product" | "reduce":
                    pass
                case _:
                    for u in v.inputs:
                        if u.size == v.size:
                            grows |= alike(v, u)
        for x, y in same:
            grows |= y is not None and alike(x, y)
        if any(len(c) >= MOST_BLOCKS for c in cuts.values()):
            raise Untranslatable("a state cut into that many pieces", "the whole step", "cut it into a few halves")
    return cuts


class _Lowering:
    """Turns values, which are whole rows, into the nodes of their blocks."""

    def __init__(self, cuts: dict[Value, set[int]]) -> None:
        self.graph = Graph()
        self.products: list[Product] = []
        self._cuts = cuts
        self._lowered: dict[Value, Blocks] = {}
        self._numbers: dict[tuple[Blocks, bool], int] = {}

    def __call__(self, value: Value) -> Blocks:
        for v in _all([value], []):  # inputs first, instead of a recursion that may be deep
            if v not in self._lowered:
                self._lowered[v] = self._lower(v)
        return self._lowered[value]

    def _widths(self, v: Value) -> list[int]:
        at = [0, *sorted(self._cuts[v]), v.size]
        return [j - i for i, j in pairwise(at)]

    def _lower(self, v: Value) -> Blocks:
        inputs = [self._lowered[u] for u in v.inputs]
        match v.op:
            case "leaf":
                return tuple(self.graph.leaf("input", *v.extra, k, width=w) for k, w in enumerate(self._widths(v)))
            case "const":
                return (self.graph.const(v.extra),)
            case "wide":
                return tuple(self.graph.widened(inputs[0][0], w) for w in self._widths(v))
            case "slice":
                at, blocks = 0, []
                for block in inputs[0]:
                    if v.extra <= at < v.extra + v.size:
                        blocks.append(block)
                    at += block.width
                return tuple(blocks)
            case "cat":
                return tuple(block for blocks in inputs for block in blocks)
            case "reduce":
                parts = [self.graph.reduce(v.extra, block) for block in inputs[0]]
                total = parts[0]
                for part in parts[1:]:
                    total = self.graph.make("add" if v.extra == "sum" else "max", total, part)
                return (total,)
            case "product":
                return self._product(v, inputs[0])
        return tuple(
            self._wide(self.graph.make(v.op, *(b[k] if len(b) > 1 else b[0] for b in inputs)), w)
            for k, w in enumerate(self._widths(v))
        )

    def _wide(self, node: Node, width: int) -> Node:
        return node if node.width == width else self.graph.widened(node, width)

    def _product(self, v: Value, inputs: Blocks) -> Blocks:
        detached = all(block.op == "detach" for block in inputs)
        key = (tuple(self.graph.computed(block.args[0] if detached else block) for block in inputs), detached)
        if key not in self._numbers:
            self._numbers[key] = len(self.products)
            self.products.append(Product(*key))
        number = self._numbers[key]
        product = self.products[number]
        if v.extra not in product.views:
            place = (number, len(product.views))
            product.views.append(v.extra)
            product.outputs.append(
                tuple(self.graph.leaf("product", *place, k, width=w) for k, w in enumerate(self._widths(v)))
            )
        return product.outputs[product.views.index(v.extra)]
