"""The sizes that bounds on whole models ask for: of inputs, weights and readout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evenflow.activations import ACTIVATIONS, Activation
from evenflow.cells import Cell, Elman
from evenflow.models.sequence_model import SequenceModel
from evenflow.probes.model_layer import find_layer
from evenflow.probes.unrolled import step_weights


@dataclass(frozen=True)
class Sizes:
    """A model of one plain or scalar-gated layer in numbers; a bias is a column of the input matrix, for an input of 1.

    Attributes:
        steps: T. units: h. inputs, outputs: I and O.
        x: the largest ‖x_t‖. W, U, V: input, recurrent and output matrix, float64.
    """

    cell: Cell
    weights: dict[str, Tensor]
    steps: int
    x: float
    W: Tensor
    U: Tensor
    V: Tensor

    @property
    def units(self) -> int:
        return len(self.U)

    @property
    def width(self) -> int:
        """The largest of inputs, units and outputs."""
        return max(*self.W.shape, *self.V.shape)


def tame(f: Activation) -> bool:
    """Whether ‖f(a) - f(b)‖ <= ‖a - b‖ and f(0) = 0, and f trains nothing."""
    return not f.trained and f.slope_bounds[1] <= 1 and not bool(f(torch.zeros(2)).any())


@torch.no_grad()
def read(model: SequenceModel, inputs: Tensor, theorem: str) -> Sizes:
    """The sizes of a model on a batch; a ValueError says what `theorem` does not cover."""
    layer = find_layer(model)
    if not isinstance(model, SequenceModel) or layer.num_layers > 1 or layer.bidirectional:
        raise ValueError(f"{theorem} needs a SequenceModel with one layer in one direction")
    if model.hidden is not None:
        raise ValueError(f"{theorem} needs a linear readout, got one with {model.hidden.out_features} hidden units")
    if getattr(layer, "initial_state", "zero") != "zero":
        raise ValueError(f"{theorem} needs a layer that starts at zero, got a learned initial state")
    cell, weights = step_weights(layer)
    if not isinstance(cell, Elman) or not tame(cell.activation):
        what = repr(cell.activation.key) if isinstance(cell, Elman) else f"a {cell.name} cell"
        known = ", ".join(name for name, f in ACTIVATIONS.items() if tame(f))
        raise ValueError(f"{theorem} needs a plain or scalar-gated layer with one of {known}, got {what}")
    x = inputs if model.embedding is None else model.embedding(inputs)
    size = float(torch.linalg.vector_norm(x.double(), dim=-1).max())
    W = weights["weight_ih"]
    if "bias" in weights:
        W, size = torch.cat([W, weights["bias"].unsqueeze(1)], 1), math.hypot(size, 1)
    return Sizes(cell, weights, len(x), size, W, weights["weight_hh"], model.output.weight.detach().double())
