"""What exports read of a model: its layer, and the step of each layer and direction with its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from evenflow.cells.cell import Cell, Weights
from evenflow.layers import Recurrent
from evenflow.maps import Map
from evenflow.models import SequenceModel
from evenflow.models.residual_stack import ResidualStack
from evenflow.scan.compiled_step import compiled_step
from evenflow.scan.derived_parameters import with_derived
from evenflow.step import Program, Untranslatable

Numbers = tuple[Tensor, ...]


def recurrent_layer(model: nn.Module, softmax: bool) -> Recurrent:
    """The layer of a model that can be exported; a ValueError says what cannot be."""
    layer = model.layer if isinstance(model, SequenceModel) else model
    if isinstance(layer, ResidualStack):
        raise ValueError(
            "model must have no residual blocks to be exported as ONNX or C, got block='residual': torch.export with "
            "evenflow.export.decompositions() exports it"
        )
    if not isinstance(layer, Recurrent):
        raise ValueError(
            f"model must be a SequenceModel over a recurrent layer, or the layer, got {type(layer).__name__}"
        )
    if softmax and not isinstance(model, SequenceModel):
        raise ValueError("softmax must be False for a layer, which has no readout")
    dtype = weight_dtype(layer)
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"model must hold float32 or float64 numbers, got {dtype}")
    return layer


def weight_dtype(layer: Recurrent) -> torch.dtype:
    """The dtype of a layer's weights."""
    return next(t.dtype for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point())


@dataclass(frozen=True)
class ExportedStep:
    """The step of one layer and direction.

    Attributes:
        program: its graph.
        weights: what `Cell.prepare` returns: ``weight_ih``, ``bias`` and others.
        matrices: the recurrent matrices.
        maps: for each matrix the map that makes it, with its numbers; None for a matrix that `prepare` changes.
        names: of the program's parameters.
        parameters: the tensors of the program's parameters, those derived from others at the end.
        sizes: of the states.
    """

    program: Program
    weights: Weights
    matrices: list[Tensor]
    maps: list[tuple[Map, Numbers] | None]
    names: list[str]
    parameters: list[Tensor | None]
    sizes: list[int]


def exported_step(layer: Recurrent, member: int) -> ExportedStep:
    """The step of one layer and direction, in the order of the final states.

    The step of a stack that runs as one recurrence is that of member 0.
    """
    cell = layer.cell
    if type(cell).project is not Cell.project:
        raise ValueError(f"the step of {cell.name} cannot be exported: it has a method project of its own")
    raw = layer.direction_weights(member) if layer.layers_run_in_turn else {}
    weights = cell.prepare(raw) if layer.layers_run_in_turn else layer.step_weights(member)
    matrices, parameters = cell.arguments(weights)
    sizes = [size * (1 if layer.layers_run_in_turn else layer.num_layers) for size in layer.state_sizes]
    text = cell.program(weights["weight_ih"].shape[0], sizes, weights)
    if isinstance(text, Untranslatable):
        raise ValueError(f"the step of {cell.name} cannot be exported: {text}")
    program = compiled_step(text).program
    listed = iter(with_derived(text, [None if p is None else p.unsqueeze(0) for p in parameters]))
    present = [next(listed)[0] if nodes else None for nodes in program.parameters]
    maps = [
        _map_of(layer, name + layer.suffixes[member]) if name in raw and weights[name] is raw[name] else None
        for name in cell.recurrent
    ]
    names = [*cell.parameters, *(f"derived{n}" for n in range(len(program.derived)))]
    return ExportedStep(program, weights, matrices, maps, names, present, sizes)


def initial_states(layer: Recurrent, step: ExportedStep) -> list[Tensor | None]:
    """The learned initial states of a step; None for zero."""
    if layer.initial_state == "zero":
        return [None for _ in layer.cell.states]
    if layer.layers_run_in_turn:
        return [step.weights[f"{name}0"] for name in layer.cell.states]
    every = [[step.weights[f"{name}0{suffix}"] for suffix in layer.suffixes] for name in layer.cell.states]
    return [torch.cat(members) for members in every]


def _map_of(layer: Recurrent, name: str) -> tuple[Map, Numbers] | None:
    """The map of a weight, with its numbers."""
    if not nn.utils.parametrize.is_parametrized(layer, name):
        return None
    parametrized = cast(nn.utils.parametrize.ParametrizationList, layer.get_submodule(f"parametrizations.{name}"))
    first = parametrized[0]
    if len(parametrized) > 1 or not isinstance(first, Map):
        return None
    return first, tuple(parametrized.parameters(recurse=False))
