"""Evaluates the graph of a step in torch operations, on blocks with any leading dimensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from evenflow.step.graph import Node, Product, View
from evenflow.step.program import Program

Values = dict[Node, Tensor]


def _as(like: Tensor, mask: Tensor) -> Tensor:
    return mask.to(like.dtype)


OPERATIONS: Mapping[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "sin": torch.sin,
    "cos": torch.cos,
    "sqrt": torch.sqrt,
    "erf": torch.erf,
    "abs": torch.abs,
    "sign": torch.sign,
    "relu": torch.relu,
    "positive": lambda x: _as(x, x > 0),
    "max": torch.maximum,
    "min": torch.minimum,
    "less": lambda x, y: _as(x, x < y),
    "less_equal": lambda x, y: _as(x, x <= y),
    "equal": lambda x, y: _as(x, x == y),
    "where": lambda c, x, y: torch.where(c != 0, x, y),
    "sum": lambda x: x.sum(-1, keepdim=True),
    "amax": lambda x: x.amax(-1, keepdim=True),
    "detach": lambda x: x.detach(),
}


class Evaluator:
    """Computes some nodes from others, in an order that is determined once.

    Args:
        roots: the nodes to compute.
        available: leaves, and nodes computed before.
        products: those that may be computed on the way.
    """

    def __init__(self, roots: Iterable[Node], available: Iterable[Node], products: Sequence[Product] = ()) -> None:
        self.roots, known = list(roots), set(available)
        self.steps: list[Node | Product] = []
        product_of = {v: product for product in products for out in product.outputs for v in out}
        done: set[Node | int] = set(known)

        def need(nodes: Iterable[Node]) -> None:
            for v in _until(nodes, done):
                if v in done:
                    continue
                if v in product_of:
                    product = product_of[v]
                    if id(product) not in done:
                        done.add(id(product))
                        need(product.inputs)
                        self.steps.append(product)
                        done.update(o for out in product.outputs for o in out)
                elif v.op in ("input", "product"):
                    raise KeyError(f"{v} is not available")
                else:
                    self.steps.append(v)
                    done.add(v)

        need(self.roots)
        last = {}  # the step after which a value is not read any more
        for n, step in enumerate(self.steps):
            for v in step.inputs if isinstance(step, Product) else step.operands:
                last[v] = n
        self.reads = {v for v in (*last, *self.roots) if v in known}  # the available nodes that are needed
        self._drop: list[list[Node]] = [[] for _ in self.steps]
        for v, n in last.items():
            if v not in known and v not in set(self.roots):
                self._drop[n].append(v)

    def __call__(self, values: Values, matrices: Sequence[Tensor], like: Tensor) -> Values:
        """Add the roots to `values`; intermediate nodes are dropped when they have been read."""
        for step, drop in zip(self.steps, self._drop, strict=True):
            if isinstance(step, Product):
                x = beside([values[v] for v in step.inputs], [v.width for v in step.inputs])
                x = x.detach() if step.detached else x  # torch may differentiate these operations
                for view, out in zip(step.views, step.outputs, strict=True):
                    y = x @ part(matrices[view.matrix], view).mT
                    values.update(zip(out, y.split([v.width for v in out], -1), strict=True))
            elif step.op == "const":
                values[step] = like.new_full((), step.args[0])
            elif step.op == "wide":
                x = values[step.args[0]]
                values[step] = x.expand(*(x.shape[:-1] if x.dim() else ()), step.width)
            else:
                values[step] = OPERATIONS[step.op](*(values[v] for v in step.operands))
            for v in drop:
                values.pop(v, None)
        return values


def _until(roots: Iterable[Node], known: set[Node | int]) -> list[Node]:
    """The nodes between what is known and the roots, operands first."""
    nodes: set[Node] = set()
    stack = list(roots)
    while stack:
        v = stack.pop()
        if v not in nodes and v not in known:
            nodes.add(v)
            stack.extend(v.operands)
    return sorted(nodes, key=lambda v: v.id)


def part(matrix: Tensor, view: View) -> Tensor:
    """The matrix W of ``x W.mT`` for a product's view of it."""
    piece = matrix[..., view.row : view.row + view.rows, view.column : view.column + view.columns]
    return piece.mT if view.transposed else piece


def blocks(tensor: Tensor | None, nodes: Sequence[Node], rows: bool = False) -> Values:
    """The blocks of a tensor that holds them side by side; of a parameter, with a dimension for the rows."""
    if tensor is None or not nodes:
        return {}
    if rows:
        tensor = tensor.unsqueeze(-2)
    if len(nodes) == 1:
        return {nodes[0]: tensor}
    return dict(zip(nodes, tensor.split([v.width for v in nodes], -1), strict=True))


def beside(parts: Sequence[Tensor], widths: Sequence[int]) -> Tensor:
    """Blocks side by side; those that are constant or the same for every row are broadcast."""
    if len(parts) == 1 and parts[0].dim() > 1:
        return parts[0]
    lead = torch.broadcast_shapes(*(v.shape[:-1] for v in parts)) or (1,)
    return torch.cat([v.expand(*lead, width) for v, width in zip(parts, widths, strict=True)], -1)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Tensors side by side."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), -1)


def step(
    program: Program,
    plan: Evaluator,
    a: Tensor,
    states: Sequence[Tensor],
    matrices: Sequence[Tensor],
    parameters: Sequence[Tensor | None],
    resets: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The new states of one step, or of many steps at once from the states before each of them."""
    values = plan(leaves(program, a, states, parameters, resets), matrices, a)
    return tuple(row(values, nodes, a.shape[:-1]) for nodes in program.new)


def leaves(
    program: Program,
    a: Tensor,
    states: Sequence[Tensor],
    parameters: Sequence[Tensor | None],
    resets: Tensor | None = None,
) -> Values:
    """The blocks of the arguments of a step."""
    values = blocks(a, program.a) | blocks(resets, program.resets)
    for nodes, state in zip(program.states, states, strict=True):
        values |= blocks(state, nodes)
    for nodes, parameter in zip(program.parameters, parameters, strict=True):
        values |= blocks(parameter, nodes, rows=True)
    return values


def row(values: Values, nodes: Sequence[Node], shape: Sequence[int]) -> Tensor:
    """Blocks side by side; constants are repeated for every row."""
    return joined([values[v].expand(*shape, v.width) for v in nodes])
