"""Collects the nodes and constants of an ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

OPSET = 18
TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64}


class OnnxGraph:
    """Nodes under names of their own, and constants, of which equal ones are one.

    Args:
        dtype: of the numbers, ``"float32"`` or ``"float64"``.
        outer: the graph around this one, for the body of a loop: constants are kept there.
    """

    def __init__(self, dtype: str, outer: OnnxGraph | None = None) -> None:
        self.dtype, self.outer = dtype, outer
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[tuple[Any, ...], onnx.TensorProto] = {}
        self._count = 0

    def name(self, kind: str) -> str:
        """A new name; a body takes it from the graph around it, so that none stands for two values."""
        if self.outer is not None:
            return self.outer.name(kind)
        self._count += 1
        return f"{kind.lower()}_{self._count}"

    def add(self, op: str, *inputs: str, outputs: Sequence[str] | None = None, **attributes: Any) -> str:
        """Add a node; returns the name of its first output."""
        names = [self.name(op)] if outputs is None else list(outputs)
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0]

    def constant(self, value: Tensor | np.ndarray | float | Sequence[int]) -> str:
        """The name of a constant; floating point numbers take the dtype of the graph."""
        if self.outer is not None:
            return self.outer.constant(value)
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        array = np.array(array, np.int64 if array.dtype.kind in "iu" else self.dtype, order="C")
        key = (array.shape, array.dtype.str, array.tobytes())
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(array, self.name("constant"))
        return self.constants[key].name

    def value(self, name: str, shape: Sequence[int | str], dtype: str | None = None) -> onnx.ValueInfoProto:
        """The declaration of an input or output; text stands for a size that is known when the model runs."""
        return helper.make_tensor_value_info(name, TYPES[dtype or self.dtype], list(shape))

    def finish(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        """The graph, with the constants that it keeps itself."""
        return helper.make_graph(self.nodes, name, list(inputs), list(outputs), list(self.constants.values()))

    def model(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto], about: Mapping[str, str]
    ) -> onnx.ModelProto:
        """The whole as a checked model, with notes in its metadata."""
        graph = self.finish("evenflow", inputs, outputs)
        model = helper.make_model(graph, producer_name="evenflow", opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = min(model.ir_version, 10)  # which runtimes of the last years read
        helper.set_model_props(model, dict(about))
        onnx.checker.check_model(model, full_check=True)
        return model
