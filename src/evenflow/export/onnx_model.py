"""A model or layer as ONNX: one Scan node a layer and direction, with the step as its body; see `to_onnx`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import onnx
import torch
from torch import Tensor

from evenflow.export.export_scaling import Scaling, input_scaling, raw_inputs, scaled_readout
from evenflow.export.exported_step import (
    ExportedStep,
    exported_step,
    initial_states,
    recurrent_layer,
    weight_dtype,
)
from evenflow.export.onnx_graph import TYPES, OnnxGraph
from evenflow.export.onnx_step import OnnxStep
from evenflow.export.written_files import write_files
from evenflow.layers import Recurrent
from evenflow.models import SequenceModel
from evenflow.models.column_embeddings import ColumnEmbeddings


def write(
    model: SequenceModel | Recurrent,
    path: str | Path,
    states: bool,
    softmax: bool,
    scaling: Scaling | None,
    output_scaling: Scaling | None,
) -> None:
    """The work of `evenflow.export.to_onnx`."""
    layer = recurrent_layer(model, softmax)
    graph = OnnxGraph(str(weight_dtype(layer)).removeprefix("torch."))
    with torch.no_grad():
        made = _model(graph, model, layer, states, softmax, scaling, output_scaling)
    write_files({Path(os.fspath(path)): made.SerializeToString()})


def _model(
    graph: OnnxGraph,
    model: SequenceModel | Recurrent,
    layer: Recurrent,
    states: bool,
    softmax: bool,
    scaling: Scaling | None,
    output_scaling: Scaling | None,
) -> onnx.ModelProto:
    embedding = getattr(model, "embedding", None)
    scaled, readout = input_scaling(model, layer, scaling), scaled_readout(model, output_scaling, softmax)
    if embedding is not None:
        inputs = [graph.value("x", ["T", "B"], "int64")]
        x = graph.add("Gather", graph.constant(embedding.weight), "x")
    else:
        shape: list[int | str] = ["B", "T"] if layer.batch_first else ["T", "B"]
        inputs = [graph.value("x", [*shape, raw_inputs(model, layer)])]
        x = graph.add("Transpose", "x", perm=[1, 0, 2]) if layer.batch_first else "x"
        if scaled is not None:
            mean, scale = (graph.constant(v) for v in scaled)
            x = graph.add("Div", graph.add("Sub", x, mean), scale)
        if isinstance(model, SequenceModel) and model.columns is not None:
            x = _with_vectors(graph, x, model.columns, raw_inputs(model, layer))
    rows = graph.add("Gather", graph.add("Shape", x), graph.constant([1]), axis=0)
    members = layer.num_layers * (2 if layer.bidirectional else 1)
    initial = [f"{name}_0" for name in layer.cell.states] if states else []
    sizes = layer.state_sizes
    inputs += [graph.value(name, [members, "B", size]) for name, size in zip(initial, sizes, strict=bool(initial))]
    h, finals = OnnxLayer(graph, layer, rows).write(x, initial)
    width = sizes[0] * (2 if layer.bidirectional else 1)
    if isinstance(model, SequenceModel) and readout is not None:
        output: list[int | str] = ["T", "B", model.output.out_features]
        if model.readout == "last":
            h, output = graph.add("Gather", h, graph.constant(-1), axis=0), output[1:]
        for part in (model.hidden, readout):
            if part is not None:
                h = _linear(graph, h, part.weight, part.bias)
                h = graph.add("Relu", h) if part is model.hidden else h
        h = graph.add("Softmax", h, axis=-1) if softmax else h
    else:
        output = [*(["B", "T"] if layer.batch_first else ["T", "B"]), width]
        h = graph.add("Transpose", h, perm=[1, 0, 2]) if layer.batch_first else h
    graph.add("Identity", h, outputs=["y"])
    outputs = [graph.value("y", output)]
    for name, final, size in zip(layer.cell.states, finals, sizes, strict=True):
        graph.add("Identity", final, outputs=[f"{name}_n"])
        outputs.append(graph.value(f"{name}_n", [members, "B", size]))
    return graph.model(inputs, outputs, {"equation": layer.cell.equation})


class OnnxLayer:
    """Writes a stack of scans.

    Args:
        graph: where to.
        layer: the layer.
        rows: name of the number of sequences.
    """

    def __init__(self, graph: OnnxGraph, layer: Recurrent, rows: str) -> None:
        self.graph, self.layer, self.rows = graph, layer, rows

    def write(self, x: str, initial: Sequence[str]) -> tuple[str, list[str]]:
        """Names of the outputs of all steps and of each final state."""
        layer, graph = self.layer, self.graph
        finals: list[list[str]] = []
        if not layer.layers_run_in_turn:  # one step runs through all layers
            return self._whole_stack(x, initial)
        directions = 2 if layer.bidirectional else 1
        for index in range(layer.num_layers):
            outputs = []
            for direction in range(directions):
                member = index * directions + direction
                step = exported_step(layer, member)
                before = [graph.add("Gather", name, graph.constant(member), axis=0) for name in initial]
                output, *ends = self._scan(x, step, before or self._start(step), bool(direction))
                outputs.append(output)
                finals.append(ends)
            x = outputs[0] if directions == 1 else graph.add("Concat", *outputs, axis=-1)
        return x, [self._stacked(member) for member in zip(*finals, strict=True)]

    def _whole_stack(self, x: str, initial: Sequence[str]) -> tuple[str, list[str]]:
        layer, graph = self.layer, self.graph
        step = exported_step(layer, 0)
        size, count = layer.hidden_size, layer.num_layers
        if initial:
            turned = [graph.add("Transpose", name, perm=[1, 0, 2]) for name in initial]
            before = [graph.add("Reshape", name, graph.constant([0, count * size])) for name in turned]
        else:
            before = self._start(step)
        output, *ends = self._scan(x, step, before, False)
        finals = []
        for end in ends:
            pieces = [graph.name("state") for _ in range(count)]
            graph.add("Split", end, graph.constant([size] * count), outputs=pieces, axis=-1)
            finals.append(self._stacked(pieces))
        top = graph.constant([(count - 1) * size]), graph.constant([count * size]), graph.constant([-1])
        return graph.add("Slice", output, *top), finals

    def _start(self, step: ExportedStep) -> list[str]:
        """The layer's own initial states."""
        names = []
        for size, learned in zip(step.sizes, initial_states(self.layer, step), strict=True):
            value = self.graph.constant(torch.zeros(size) if learned is None else learned)
            shape = self.graph.add("Concat", self.rows, self.graph.constant([size]), axis=0)
            names.append(self.graph.add("Expand", value, shape))
        return names

    def _stacked(self, names: Sequence[str]) -> str:
        pieces = [self.graph.add("Unsqueeze", name, self.graph.constant([0])) for name in names]
        return self.graph.add("Concat", *pieces, axis=0)

    def _scan(self, x: str, step: ExportedStep, before: Sequence[str], backwards: bool) -> list[str]:
        """One Scan node: names of the output of every step and of each final state."""
        graph, sizes, width = self.graph, step.sizes, step.weights["weight_ih"].shape[0]
        a = _linear(graph, x, step.weights["weight_ih"], step.weights.get("bias"))
        body = OnnxGraph(graph.dtype, graph)
        states, at = [body.name("state") for _ in before], body.name("a")
        new = OnnxStep(body, step.program, step.matrices, step.parameters).write(at, states)
        ends = [body.add("Identity", name) for name in new]
        output = body.add("Identity", new[0])
        declared = [body.value(name, ["B", size]) for name, size in zip(states, sizes, strict=True)]
        inner = body.finish(
            body.name("step"),
            [*declared, body.value(at, ["B", width])],
            [body.value(name, ["B", size]) for name, size in zip([*ends, output], [*sizes, sizes[0]], strict=True)],
        )
        outputs = [graph.name("final") for _ in ends] + [graph.name("output")]
        way = [1 if backwards else 0]
        graph.add(
            "Scan", *before, a, outputs=outputs, body=inner, num_scan_inputs=1,
            scan_input_directions=way, scan_output_directions=way,
        )  # fmt: skip
        return [outputs[-1], *outputs[:-1]]


def _with_vectors(graph: OnnxGraph, x: str, columns: ColumnEmbeddings, inputs: int) -> str:
    """x with a vector in place of each column of positions."""
    axis, parts, first = graph.constant([-1]), [], 0

    def piece(begin: int, end: int) -> str:
        return graph.add("Slice", x, graph.constant([begin]), graph.constant([end]), axis)

    for place, table in zip(columns.places, columns.tables, strict=True):
        parts += [piece(first, place)] if place > first else []
        positions = graph.add("Cast", graph.add("Squeeze", piece(place, place + 1), axis), to=TYPES["int64"])
        parts.append(graph.add("Gather", graph.constant(cast(Tensor, table.weight)), positions))
        first = place + 1
    return graph.add("Concat", *parts, *([piece(first, inputs)] if first < inputs else []), axis=-1)


def _linear(graph: OnnxGraph, x: str, weight: Tensor, bias: Tensor | None) -> str:
    y = graph.add("MatMul", x, graph.constant(weight.mT))
    return y if bias is None else graph.add("Add", y, graph.constant(bias))
