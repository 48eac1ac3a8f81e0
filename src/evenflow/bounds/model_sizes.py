"""The sizes of inputs, weights and readout that bounds on whole models depend on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from evenflow.activations import ACTIVATIONS, Activation
from evenflow.cells import Cell, Elman
from evenflow.models.residual_stack import ResidualStack
from evenflow.models.sequence_model import SequenceModel
from evenflow.probes.model_layer import find_layer
from evenflow.probes.unrolled import step_weights


@dataclass(frozen=True)
class ModelSizes:
    """The sizes of a model of one plain or scalar-gated layer on a batch.

    Attributes:
        cell, weights: the cell and the weights of its step.
        steps: T.
        x: the largest ‖x_t‖.
        W, U, V: input, recurrent and output matrix in float64. A bias is a column of W, for an input of 1.
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


def is_tame(f: Activation) -> bool:
    """True if ‖f(a) - f(b)‖ <= ‖a - b‖, f(0) = 0, and f has no trained parameters."""
    return not f.trained and f.slope_bounds[1] <= 1 and not bool(f(torch.zeros(2)).any())


@torch.no_grad()
def model_sizes(model: SequenceModel, inputs: Tensor, theorem: str, kind: type[Elman]) -> ModelSizes:
    """The sizes of a model on a batch; a ValueError if `theorem`, which is on cells of one kind, does not cover it."""
    layer = find_layer(model)
    if not isinstance(model, SequenceModel) or layer.num_layers > 1 or layer.bidirectional:
        raise ValueError(f"{theorem} needs a SequenceModel with one layer in one direction")
    if isinstance(model.layer, ResidualStack):
        raise ValueError(f"{theorem} needs a model without residual blocks, got block='residual'")
    if model.hidden is not None:
        raise ValueError(f"{theorem} needs a linear readout, got one with {model.hidden.out_features} hidden units")
    if getattr(layer, "initial_state", "zero") != "zero":
        raise ValueError(f"{theorem} needs a layer that starts at zero, got a learned initial state")
    cell, weights = step_weights(layer)
    if not isinstance(cell, Elman) or not is_tame(cell.activation):
        what = repr(cell.activation.key) if isinstance(cell, Elman) else f"a {cell.name} cell"
        names = ", ".join(name for name, f in ACTIVATIONS.items() if is_tame(f))
        raise ValueError(f"{theorem} needs a plain or scalar-gated layer with one of {names}, got {what}")
    if type(cell) is not kind:
        needed = "plain" if kind is Elman else "scalar-gated"
        raise ValueError(f"{theorem} needs a {needed} layer, got a {cell.name} cell")
    embedding = model.columns if model.embedding is None else model.embedding
    x = inputs if embedding is None else embedding(inputs)
    size = float(torch.linalg.vector_norm(x.double(), dim=-1).max())
    W = weights["weight_ih"]
    if "bias" in weights:
        W, size = torch.cat([W, weights["bias"].unsqueeze(1)], 1), math.hypot(size, 1)
    return ModelSizes(cell, weights, len(x), size, W, weights["weight_hh"], model.output.weight.detach().double())
