"""The backward pass of a step: its graph by the chain rule, and what the forward pass keeps for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from evenflow.step.graph import Graph, Node
from evenflow.step.program import Blocks, Program, flat
from evenflow.step.saved import choose_kept


@dataclass(eq=False)
class Gradient:
    """What the backward pass of one step computes, going back in time.

    Attributes:
        program: the step.
        by_new: leaves, the gradient by each new state: what arrives from outside and from the step after.
        returned: leaves, for each product the gradient by its inputs, ``Σ (gradient by outputs) W``; none where it is
            detached.
        outputs: for each product and view the gradient by the outputs; a product without any is None.
        a, states, parameters: the gradients by the arguments, by block.
        kept: nodes of the forward pass that it stores for this one: numbers, then marks of one byte.
    """

    program: Program
    by_new: tuple[Blocks, ...]
    returned: list[Blocks]
    outputs: list[list[Blocks] | None]
    a: Blocks
    states: tuple[Blocks, ...]
    parameters: tuple[Blocks, ...]
    kept: list[Node] = field(default_factory=list)

    def of_products(self) -> list[Node]:
        """Blocks that go into products which have gradients, whose weights' gradients read them again."""
        return [v for p, product in enumerate(self.program.products) if self.outputs[p] for v in product.inputs]

    @property
    def numbers(self) -> list[Node]:
        fed = set(self.of_products())  # a product takes numbers, also where they are marks
        return [v for v in self.kept if not v.is_mark or v in fed]

    @property
    def marks(self) -> list[Node]:
        fed = set(self.of_products())
        return [v for v in self.kept if v.is_mark and v not in fed]

    def targets(self) -> list[Node]:
        """Everything that it computes."""
        outputs = [v for views in self.outputs if views for blocks in views for v in blocks]
        states = [v for blocks in self.states for v in blocks]
        return [*outputs, *self.a, *states, *(v for blocks in self.parameters for v in blocks)]


def differentiate(program: Program) -> Gradient:
    """The gradient of a step, with the choice of what to keep."""
    graph = program.graph
    forward = program.nodes()
    by_new = tuple(
        tuple(graph.leaf("input", "gradient", i, k, width=v.width) for k, v in enumerate(blocks))
        for i, blocks in enumerate(program.new)
    )
    slopes = _Slopes(graph)
    for node, gradient in zip(flat(program.new), flat(by_new), strict=True):
        slopes.add(node, gradient)
    number_of = {v: p for p, product in enumerate(program.products) for out in product.outputs for v in out}
    last = {p: max(v.id for out in product.outputs for v in out) for p, product in enumerate(program.products)}
    returned: list[Blocks] = [()] * len(program.products)
    outputs: list[list[Blocks] | None] = [None] * len(program.products)
    # A product goes back once all that reads its outputs has, and before all that its inputs are made of.
    for item in _backward_order(program, forward, last):
        if isinstance(item, Node):
            if item not in number_of:
                slopes.back(item)
            continue
        product = program.products[item]
        gradients = [tuple(slopes.of(v) for v in out) for out in product.outputs]
        if any(v is not graph.const(0) for blocks in gradients for v in blocks):
            outputs[item] = [
                tuple(graph.widened(v, o.width) for v, o in zip(g, out, strict=True))
                for g, out in zip(gradients, product.outputs, strict=True)
            ]
            if product.detached:
                continue
            returned[item] = tuple(
                graph.leaf("input", "returned", item, k, width=v.width) for k, v in enumerate(product.inputs)
            )
            for node, gradient in zip(product.inputs, returned[item], strict=True):
                slopes.add(node, gradient)
    of = lambda blocks: tuple(graph.widened(slopes.of(v), v.width) for v in blocks)  # noqa: E731
    parameters = tuple(tuple(slopes.of(v) for v in blocks) for blocks in program.parameters)
    found = Gradient(program, by_new, returned, outputs, of(program.a), tuple(map(of, program.states)), parameters)
    found.kept = choose_kept(found)
    return found


def _backward_order(program: Program, forward: Sequence[Node], last: dict[int, int]) -> list[Node | int]:
    """Nodes and products, each after all that is computed from it."""
    readers: dict[Node | int, int] = {}
    below: dict[Node | int, list[Node | int]] = {}
    made = {v: p for p, product in enumerate(program.products) for out in product.outputs for v in out}
    for v in forward:
        below[v] = [made[v]] if v in made else list(v.operands)
    for p, product in enumerate(program.products):
        below[p] = list(dict.fromkeys(product.inputs))
    items = list(below)
    for item in items:
        for u in below[item]:
            readers[u] = readers.get(u, 0) + 1
    ready = [item for item in items if not readers.get(item)]
    order: list[Node | int] = []
    while ready:
        item = ready.pop()
        order.append(item)
        for u in below[item]:
            readers[u] -= 1
            if not readers[u]:
                ready.append(u)
    return order


class _Slopes:
    """Gradients by nodes, added up as they come in."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._sums: dict[Node, Node] = {}

    def of(self, node: Node) -> Node:
        return self._sums.get(node, self._graph.const(0))

    def add(self, node: Node, gradient: Node) -> None:
        if gradient is self._graph.const(0):
            return
        if node.width == 1 < gradient.width:
            gradient = self._graph.reduce("sum", gradient)
        so_far = self._sums.get(node)
        self._sums[node] = gradient if so_far is None else self._graph.make("add", so_far, gradient)

    def back(self, e: Node) -> None:
        """Pass the gradient by e on to its operands."""
        if e.op in ("input", "const", "detach") or e not in self._sums:
            return
        g = self._sums[e]
        if g.width < e.width:
            g = self._graph.widened(g, e.width)
        for operand, gradient in zip(e.operands, pulled_back(self._graph, e, g), strict=True):
            if gradient is not None:
                self.add(operand, gradient)


def pulled_back(graph: Graph, e: Node, g: Node) -> list[Node | None]:
    """The gradients by the operands of e, of those that have one, from the gradient g by e."""
    make, v = graph.make, e.operands
    x, y = v[0], v[-1]

    def times(factor: Node | float) -> Node:
        return make("mul", g, factor)

    match e.op:
        case "add":
            return [g, g]
        case "sub":
            return [g, make("neg", g)]
        case "mul":
            return [times(y), times(x)]
        case "div":
            by_x = make("div", g, y)
            return [by_x, make("neg", make("mul", by_x, e))]
        case "neg":
            return [make("neg", g)]
        case "tanh":
            return [times(make("sub", 1, make("mul", e, e)))]
        case "sigmoid":
            return [times(make("mul", e, make("sub", 1, e)))]
        case "exp":
            return [times(e)]
        case "expm1":
            return [times(make("add", e, 1))]
        case "log":
            return [make("div", g, x)]
        case "log1p":
            return [make("div", g, make("add", x, 1))]
        case "sin":
            return [times(make("cos", x))]
        case "cos":
            return [times(make("neg", make("sin", x)))]
        case "sqrt":
            return [make("div", times(0.5), e)]
        case "erf":
            return [times(make("mul", 2 / math.sqrt(math.pi), make("exp", make("neg", make("mul", x, x)))))]
        case "abs":
            return [times(make("sign", x))]
        case "relu":
            return [times(make("positive", e))]  # where e is stored, x need not be
        case "max":
            return _larger(graph, g, x, y)
        case "min":
            return _larger(graph, g, x, y)[::-1]
        case "where":
            return [None, make("where", v[0], g, 0), make("where", v[0], 0, g)]
        case "wide" | "sum":
            return [g]
        case "amax":
            most = make("equal", x, e)
            return [make("div", times(most), graph.reduce("sum", most))]
        case "sign" | "positive" | "less" | "less_equal" | "equal":
            return [None] * len(v)
    raise NotImplementedError(e.op)


def _larger(graph: Graph, g: Node, x: Node, y: Node) -> list[Node | None]:
    """Of the larger one; where both are the same half each, and beside a constant all, as `clamp` has it."""
    make = graph.make
    if "const" in (x.op, y.op):
        return [make("mul", g, make("less_equal", y, x)), make("mul", g, make("less_equal", x, y))]
    same = make("mul", make("equal", x, y), 0.5)
    return [make("mul", g, make("add", make("less", b, a), same)) for a, b in ((x, y), (y, x))]
