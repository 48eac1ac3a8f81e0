"""The gradient of a step: its graph by the chain rule, and which numbers the forward pass keeps for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from evenflow.step.graph import Graph, Node
from evenflow.step.program import Blocks, Program, flat
from evenflow.step.saved import choose_kept, computed_again


@dataclass(eq=False)
class Gradient:
    """The backward pass of one step.

    Attributes:
        program: the step.
        by_new: leaves, the gradient by each new state, from outside and from the step after.
        returned: leaves, for each product the gradient by its inputs, ``Σ (gradient by outputs) W``; none where it is
            detached.
        outputs: for each product and view the gradient by the outputs; a product without any is None.
        passed: the same, without rows that restart: what a product passes on to its inputs.
        a, states, parameters: the gradients by the arguments, by block.
        kept: nodes of the forward pass that it stores for this one: numbers, then marks of one byte.
    """

    program: Program
    by_new: tuple[Blocks, ...]
    returned: list[Blocks]
    outputs: list[list[Blocks] | None]
    passed: list[list[Blocks] | None]
    a: Blocks
    states: tuple[Blocks, ...]
    parameters: tuple[Blocks, ...]
    kept: list[Node] = field(default_factory=list)

    def of_products(self) -> list[Node]:
        """Inputs of the products that have a gradient: the gradients of their matrices read them again."""
        return [v for p, product in enumerate(self.program.products) if self.outputs[p] for v in product.inputs]

    @property
    def numbers(self) -> list[Node]:
        fed = set(self.of_products())  # a product takes numbers, also where they are marks
        again = set(self.again)
        return [v for v in self.kept if (not v.is_mark or v in fed) and v not in again]

    @property
    def again(self) -> list[Node]:
        """Kept nodes that are computed again instead of being stored."""
        return computed_again(self)

    @property
    def marks(self) -> list[Node]:
        fed = set(self.of_products())
        return [v for v in self.kept if v.is_mark and v not in fed]

    def targets(self) -> list[Node]:
        """All nodes that the backward pass computes."""
        outputs = [v for views in self.outputs if views for blocks in views for v in blocks]
        states = [v for blocks in self.states for v in blocks]
        passed = [v for views in self.passed if views for blocks in views for v in blocks]
        return [*outputs, *passed, *self.a, *states, *(v for blocks in self.parameters for v in blocks)]


def differentiate(program: Program) -> Gradient:
    """The gradient of a step, with the choice of what to keep."""
    graph = program.graph
    forward = program.nodes()
    by_new = tuple(
        tuple(graph.leaf("input", "gradient", i, k, width=v.width) for k, v in enumerate(blocks))
        for i, blocks in enumerate(program.new)
    )
    gradients_by = _Sums(graph)
    for node, gradient in zip(flat(program.new), flat(by_new), strict=True):
        gradients_by.add(node, gradient)
    number_of = {v: p for p, product in enumerate(program.products) for out in product.outputs for v in out}
    last = {p: max(v.id for out in product.outputs for v in out) for p, product in enumerate(program.products)}
    returned: list[Blocks] = [()] * len(program.products)
    outputs: list[list[Blocks] | None] = [None] * len(program.products)
    passed: list[list[Blocks] | None] = [None] * len(program.products)
    # The gradient of a product comes after those of all that reads its outputs, and before those of its inputs.
    for item in _backward_order(program, forward, last):
        if isinstance(item, Node):
            if item not in number_of:
                gradients_by.propagate(item)
            continue
        product = program.products[item]
        gradients = [tuple(gradients_by.of(v) for v in out) for out in product.outputs]
        if any(v is not graph.const(0) for blocks in gradients for v in blocks):
            outputs[item] = passed[item] = _wide(graph, gradients, product.outputs)
            if program.restarts(product):
                # The gradient by what the step reads, often that by a, in all rows: those that restart have no input.
                read = [tuple(graph.make("where", program.resets[0], 0, v) for v in out) for out in product.outputs]
                outputs[item] = _wide(graph, [tuple(map(gradients_by.of, out)) for out in read], product.outputs)
            if product.detached:
                continue
            returned[item] = tuple(
                graph.leaf("input", "returned", item, k, width=v.width) for k, v in enumerate(product.inputs)
            )
            for node, gradient in zip(product.inputs, returned[item], strict=True):
                gradients_by.add(node, gradient)
    of = lambda blocks: tuple(graph.widened(gradients_by.of(v), v.width) for v in blocks)  # noqa: E731
    parameters = tuple(tuple(gradients_by.of(v) for v in blocks) for blocks in program.parameters)
    by_states = tuple(map(of, program.states))
    result = Gradient(program, by_new, returned, outputs, passed, of(program.a), by_states, parameters)
    result.kept = choose_kept(result)
    return result


def _wide(graph: Graph, gradients: Sequence[Blocks], outputs: Sequence[Blocks]) -> list[Blocks]:
    """The gradients, each as wide as its output."""
    pairs = zip(gradients, outputs, strict=True)
    return [tuple(graph.widened(v, o.width) for v, o in zip(*each, strict=True)) for each in pairs]


def _backward_order(program: Program, forward: Sequence[Node], last: dict[int, int]) -> list[Node | int]:
    """Nodes and products, each after all that is computed from it."""
    readers: dict[Node | int, int] = {}
    below: dict[Node | int, list[Node | int]] = {}
    product_of = {v: p for p, product in enumerate(program.products) for out in product.outputs for v in out}
    for v in forward:
        below[v] = [product_of[v]] if v in product_of else list(v.operands)
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


class _Sums:
    """Gradients by nodes, each a sum over the readers of the node."""

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

    def propagate(self, e: Node) -> None:
        """Add what the gradient by e contributes to those of its operands."""
        if e.op in ("input", "const", "detach") or e not in self._sums:
            return
        g = self._sums[e]
        if g.width < e.width:
            g = self._graph.widened(g, e.width)
        for operand, gradient in zip(e.operands, vjp(self._graph, e, g), strict=True):
            if gradient is not None:
                self.add(operand, gradient)


def vjp(graph: Graph, e: Node, g: Node) -> list[Node | None]:
    """The gradients by the operands of e, from the gradient g by e; None for an operand without one."""
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
    """The gradients of a maximum: half each where both are equal; beside a constant the whole, as `clamp` has it."""
    make = graph.make
    if "const" in (x.op, y.op):
        return [make("mul", g, make("less_equal", y, x)), make("mul", g, make("less_equal", x, y))]
    same = make("mul", make("equal", x, y), 0.5)
    return [make("mul", g, make("add", make("less", b, a), same)) for a, b in ((x, y), (y, x))]
