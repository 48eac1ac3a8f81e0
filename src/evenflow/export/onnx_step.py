"""One step of a cell as ONNX nodes, from the graph that all engines are derived from."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto
from torch import Tensor

from evenflow.export.onnx_graph import OnnxGraph
from evenflow.step.compute import Evaluator, part
from evenflow.step.graph import Node, Product
from evenflow.step.program import Program, flat

PLAIN = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "neg": "Neg", "tanh": "Tanh", "sigmoid": "Sigmoid",
    "exp": "Exp", "log": "Log", "sin": "Sin", "cos": "Cos", "sqrt": "Sqrt", "erf": "Erf", "abs": "Abs", "sign": "Sign",
    "relu": "Relu", "max": "Max", "min": "Min", "detach": "Identity",
}  # fmt: skip
COMPARED = {"less": "Less", "less_equal": "LessOrEqual", "equal": "Equal"}


class OnnxStep:
    """Writes a step into a graph.

    Args:
        graph: the body of a loop over time.
        program: the step.
        matrices, parameters: its weights; parameters with those that the step derives from them.
    """

    def __init__(
        self, graph: OnnxGraph, program: Program, matrices: Sequence[Tensor], parameters: Sequence[Tensor | None]
    ) -> None:
        self.graph, self.program, self.matrices = graph, program, matrices
        self.names: dict[Node, str] = {}
        self.by_row: dict[Node, bool] = {}  # whether a value has a row for each sequence, or is the same for all
        self.real = TensorProto.DOUBLE if graph.dtype == "float64" else TensorProto.FLOAT
        for nodes, parameter in zip(program.parameters, parameters, strict=True):
            if parameter is not None:
                for v, piece in zip(nodes, parameter.split([v.width for v in nodes], -1), strict=True):
                    self._set(v, graph.constant(piece), False)

    def write(self, a: str, states: Sequence[str]) -> list[str]:
        """Names of the new states, from those of the pre-activation and the states before."""
        self._split(a, self.program.a)
        for state, nodes in zip(states, self.program.states, strict=True):
            self._split(state, nodes)
        self.rows = self.graph.add("Gather", self.graph.add("Shape", a), self.graph.constant([0]), axis=0)
        leaves = [*self.program.a, *flat(self.program.states), *flat(self.program.parameters)]
        for each in Evaluator(flat(self.program.new), leaves, self.program.products).steps:
            self._product(each) if isinstance(each, Product) else self._node(each)
        return [self._joined(nodes) for nodes in self.program.new]

    def _set(self, v: Node, name: str, by_row: bool) -> None:
        self.names[v], self.by_row[v] = name, by_row

    def _split(self, name: str, nodes: Sequence[Node]) -> None:
        if len(nodes) == 1:
            self._set(nodes[0], name, True)
            return
        pieces = [self.graph.name("block") for _ in nodes]
        self.graph.add("Split", name, self.graph.constant([v.width for v in nodes]), outputs=pieces, axis=-1)
        for v, piece in zip(nodes, pieces, strict=True):
            self._set(v, piece, True)

    def _wide(self, v: Node, width: int) -> str:
        """A value with a row for each sequence and `width` columns."""
        if self.by_row[v] and v.width == width:
            return self.names[v]
        shape = self.graph.add("Concat", self.rows, self.graph.constant([width]), axis=0)
        return self.graph.add("Expand", self.names[v], shape)

    def _joined(self, nodes: Sequence[Node]) -> str:
        pieces = [self._wide(v, v.width) for v in nodes]
        return pieces[0] if len(pieces) == 1 else self.graph.add("Concat", *pieces, axis=-1)

    def _product(self, product: Product) -> None:
        x = self._joined(product.inputs)
        for view, outputs in zip(product.views, product.outputs, strict=True):
            weight = self.graph.constant(part(self.matrices[view.matrix], view).mT)
            self._split(self.graph.add("MatMul", x, weight), outputs)

    def _node(self, v: Node) -> None:
        add, constant = self.graph.add, self.graph.constant
        operands = [self.names[u] for u in v.operands]
        if v.op == "const":
            name = constant(float(v.args[0]))
        elif v.op == "wide":
            self._set(v, self._wide(v.args[0], v.width), True)
            return
        elif v.op in PLAIN:
            name = add(PLAIN[v.op], *operands)
        elif v.op in COMPARED:
            name = add("Cast", add(COMPARED[v.op], *operands), to=self.real)
        elif v.op == "positive":
            name = add("Cast", add("Greater", *operands, constant(0.0)), to=self.real)
        elif v.op == "where":
            name = add("Where", add("Cast", operands[0], to=TensorProto.BOOL), *operands[1:])
        elif v.op == "expm1":
            name = add("Sub", add("Exp", *operands), constant(1.0))
        elif v.op == "log1p":
            name = add("Log", add("Add", *operands, constant(1.0)))
        elif v.op in ("sum", "amax"):
            name = add("ReduceSum" if v.op == "sum" else "ReduceMax", *operands, constant([-1]), keepdims=1)
        else:
            raise ValueError(f"the operation {v.op} has no ONNX form yet")
        self._set(v, name, any(self.by_row[u] for u in v.operands))
