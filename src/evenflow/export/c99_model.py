"""A model or layer as a C99 file and its header; see `to_c`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from evenflow.checks import one_of
from evenflow.export.c99_constants import C99Constants
from evenflow.export.c99_functions import C99Functions
from evenflow.export.c99_input import C99Input
from evenflow.export.c99_product import C99Products
from evenflow.export.c99_step import C99Step
from evenflow.export.export_scaling import Scaling, scaled_readout
from evenflow.export.exported_step import exported_step, initial_states, recurrent_layer
from evenflow.export.written_files import write_files
from evenflow.layers import Recurrent
from evenflow.models import SequenceModel
from evenflow.step.generated_code import braces

WEIGHTS = ("float32", "int8")


def write(
    model: SequenceModel | Recurrent,
    path: str | Path,
    weights: str,
    approximate: bool,
    softmax: bool,
    scaling: Scaling | None,
    output_scaling: Scaling | None,
) -> None:
    """The work of `evenflow.export.to_c`."""
    one_of("weights", weights, WEIGHTS)
    source = Path(os.fspath(path))
    if source.suffix != ".c":
        raise ValueError(f"path must end in .c, got {os.fspath(path)!r}")
    prefix = re.sub(r"[^A-Za-z0-9]+", "_", source.stem).strip("_")
    if not prefix[:1].isalpha():
        raise ValueError(
            f"path must name a file that begins with a letter, which C functions can have, got {source.name!r}"
        )
    layer = recurrent_layer(model, softmax)
    if layer.bidirectional:
        raise ValueError(
            "model must not be bidirectional: its second direction begins at the last step, so it has no outputs step "
            "by step"
        )
    with torch.no_grad():
        made = C99Model(model, layer, prefix, weights == "int8", approximate, softmax, scaling, output_scaling)
        body, header = made.texts(source.with_suffix(".h").name)
    write_files({source: body.encode("ascii"), source.with_suffix(".h"): header.encode("ascii")})


class C99Model:
    """Writes the functions init, step and result.

    Args:
        model, layer: what is exported, and its layer.
        prefix: of all public names.
        int8: whether weights are stored as int8.
        approximate: whether the file has approximations in place of math.h.
        softmax: whether a softmax follows the readout.
        scaling, output_scaling: mean and scale of each input, and of each output.
    """

    def __init__(
        self,
        model: SequenceModel | Recurrent,
        layer: Recurrent,
        prefix: str,
        int8: bool,
        approximate: bool,
        softmax: bool,
        scaling: Scaling | None,
        output_scaling: Scaling | None,
    ) -> None:
        self.model, self.layer, self.prefix, self.softmax = model, layer, prefix, softmax
        self.sequence_model = model if isinstance(model, SequenceModel) else None
        self.output = scaled_readout(model, output_scaling, softmax)
        self.constants = C99Constants()
        self.input = C99Input(model, layer, self.constants, int8, scaling)
        self.products = C99Products(self.constants, int8)
        self.functions = C99Functions(approximate)
        members = range(layer.num_layers if layer.layers_run_in_turn else 1)
        self.steps = [exported_step(layer, member) for member in members]

    @property
    def outputs(self) -> int:
        """The numbers that result returns."""
        return self.layer.state_sizes[0] if self.output is None else self.output.out_features

    def texts(self, header: str) -> tuple[str, str]:
        """The file and its header, which has this name."""
        suffixes = [f"_l{k}" for k in range(len(self.steps))]
        pairs = zip(suffixes, self.steps, strict=True)
        steps = [["", *C99Step(suffix, step, self.products, self.functions).text()] for suffix, step in pairs]
        public = [["", *self._init()], ["", *self._step()], ["", *self._result()]]
        parts = [
            f"/* {self._about()} */",
            *(["#include <math.h>"] if self.functions.header else []),
            f'#include "{header}"',
            "",
            *self.constants.text,
            *(f"\n{text.rstrip()}" for text in (*self.products.functions.values(), *self.functions.texts)),
            *(line for lines in [*steps, *public] for line in lines),
        ]
        return "\n".join(parts) + "\n", self._header()

    def _about(self) -> str:
        """One line on the model."""
        layer = self.layer
        name = type(layer).__name__.removeprefix("Parametrized")  # which torch puts before the names of such classes
        stack = f" in {layer.num_layers} layers" if layer.num_layers > 1 else ""
        what = f"{name if name.isascii() else 'a layer'}, {layer.input_size} inputs, {layer.hidden_size} units{stack}"
        return f"{what}, {self.outputs} outputs. Written by evenflow {version('evenflow')}."

    def _field(self, state: int, member: int) -> str:
        """The name of a state in the struct."""
        name = self.layer.cell.states[state]
        return f"{name if name.isascii() else f'state{state}'}_l{member}"

    def _fields(self) -> list[tuple[str, int, Tensor | None]]:
        """Each state's name in the struct, its size and its first value."""
        fields = []
        for member, step in enumerate(self.steps):
            for i, (size, first) in enumerate(zip(step.sizes, initial_states(self.layer, step), strict=True)):
                fields.append((self._field(i, member), size, first))
        return fields

    def _header(self) -> str:
        name, capital = self.prefix, self.prefix.upper()
        fields = [f"    float {field}[{size}];" for field, size, _ in self._fields()]
        return "\n".join(
            [
                f"/* {self._about()} */",
                f"#ifndef {capital}_H",
                f"#define {capital}_H",
                "",
                f"#define {capital}_{self.input.kind} {self.input.count}",
                f"#define {capital}_OUTPUTS {self.outputs}",
                "",
                "#ifdef __cplusplus",
                'extern "C" {',
                "#endif",
                "",
                "typedef struct {",
                *fields,
                f"}} {name}_state;",
                "",
                "/* Sets the state before the first step of a sequence. */",
                f"void {name}_init({name}_state *state);",
                "",
                f"/* Reads the input of one step: {self.input.about(capital)}. */",
                f"void {name}_step({name}_state *state, {self.input.parameter});",
                "",
                f"/* Writes the {capital}_OUTPUTS outputs after the steps so far to y; the state stays as it is. */",
                f"void {name}_result(const {name}_state *state, float *y);",
                "",
                "#ifdef __cplusplus",
                "}",
                "#endif",
                "",
                "#endif",
                "",
            ]
        )

    def _init(self) -> list[str]:
        lines = []
        for field, size, first in self._fields():
            value = "0" if first is None else f"{self.constants.floats(f'first_{field}', first)}[j]"
            lines.append(f"for (int j = 0; j < {size}; j++) state->{field}[j] = {value};")
        return braces(f"void {self.prefix}_init({self.prefix}_state *state)", lines)

    def _step(self) -> list[str]:
        lines, x = self.input.text()
        for member, step in enumerate(self.steps):
            states = [f"state->{self._field(i, member)}" for i in range(len(step.sizes))]
            lines.append(f"step_l{member}({', '.join([x, *states])});")
            x = states[0]
        return braces(f"void {self.prefix}_step({self.prefix}_state *state, {self.input.parameter})", lines)

    def _result(self) -> list[str]:
        width = self.layer.state_sizes[0]
        top = f"state->{self._field(0, len(self.steps) - 1)}"
        if not self.layer.layers_run_in_turn:  # the output is the last layer's part of the state
            top = f"{top} + {(self.layer.num_layers - 1) * width}"
        head = f"void {self.prefix}_result(const {self.prefix}_state *state, float *y)"
        model = self.sequence_model
        if model is None or self.output is None:
            return braces(head, [f"for (int j = 0; j < {width}; j++) y[j] = ({top})[j];"])
        lines = []
        if model.hidden is not None:
            units = model.hidden.out_features
            lines = [
                f"float hidden[{units}];",
                self.products.dense("readout_hidden", model.hidden.weight, model.hidden.bias, top, "hidden"),
                f"for (int j = 0; j < {units}; j++) hidden[j] = hidden[j] <= 0 ? 0 : hidden[j];",
            ]
            top = "hidden"
        lines.append(self.products.dense("readout", self.output.weight, self.output.bias, top, "y"))
        return braces(head, [*lines, *(self._softmax() if self.softmax else [])])

    def _softmax(self) -> Sequence[str]:
        count = self.outputs
        return [
            "float most = y[0], sum = 0;",
            f"for (int j = 1; j < {count}; j++) most = y[j] > most ? y[j] : most;",
            f"for (int j = 0; j < {count}; j++) sum += y[j] = {self.functions.name('exp')}(y[j] - most);",
            f"for (int j = 0; j < {count}; j++) y[j] /= sum;",
        ]
