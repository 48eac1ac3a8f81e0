"""One time step of a layer without gradients on a GPU, replayed from a CUDA graph.

A step takes some ten small kernels, and Python takes longer to start them than the GPU takes to run them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evenflow.cells import Cell, Weights
from evenflow.layers.layer_state import LayerState
from evenflow.runtime.captured_function import CapturedFunction
from evenflow.runtime.cuda_graphs import GraphCache
from evenflow.runtime.torch_state import plain_tensors, stream_id

if TYPE_CHECKING:
    from evenflow.layers.recurrent import Recurrent

State = Tensor | tuple[Tensor, ...]
WARM_UP = 2  # steps of one shape that run kernel by kernel before the capture
LIMIT = 4  # captures of one layer


class CapturedSteps:
    """The captured steps of a layer for its weights at their addresses.

    A graph reads the weights where they are, so their values may change. What is computed from them before a step, such
    as the matrix of a map, is kept, and computed again when torch counts a change to a weight; torch counts no write
    through ``p.data``.

    Attributes:
        possible: False where the layer cannot be stepped in this way.
    """

    def __init__(self, layer: Recurrent) -> None:
        self._state = LayerState(layer)
        tensors = self._state.tensors
        numbers = [t for t in tensors if t.is_floating_point()]  # not the indices of a map
        self._device, self._dtype = numbers[0].device, numbers[0].dtype
        alike = all(t.device == self._device for t in tensors) and all(t.dtype == self._dtype for t in numbers)
        self.possible = layer.layers_run_in_turn and alike and plain_tensors(tensors)
        self.possible = self.possible and not any(t.is_inference() for t in tensors)
        self._cache: GraphCache[CapturedFunction] = GraphCache("a layer takes single steps", WARM_UP, LIMIT)
        if self.possible:
            self._versions = self._count_changes()
            self._weights = self._computed_weights(layer)

    def is_current(self, layer: Recurrent) -> bool:
        """Return True while the layer has the same cell, the same settings, and the same weights at their addresses."""
        return self._state.is_current(layer)

    def run(self, layer: Recurrent, x: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, State] | None:
        """Take one step from x ``(B, I)`` or ``(I)``, or return None where `Recurrent.forward` has to take it."""
        if any(type(v) is not Tensor or v.dtype != self._dtype or v.device != self._device for v in (x, *states)):
            return None
        if not has_shapes_of_a_step(layer, x, states) or torch.cuda.is_current_stream_capturing():
            return None
        if (versions := self._count_changes()) != self._versions:
            self._compute_again(layer)
            self._versions = versions
        inputs = (x, *states)
        key = (stream_id(self._device), torch.backends.cuda.matmul.fp32_precision, x.shape)
        captured = self._cache.get(key, self._device, lambda: self._captured(layer, inputs))
        if captured is None:
            return None
        output, *new = captured.results(inputs)
        return output, new[0] if len(new) == 1 else tuple(new)

    def _captured(self, layer: Recurrent, inputs: Sequence[Tensor]) -> CapturedFunction:
        cell, weights = layer.cell, self._weights
        single = layer.takes_one_step  # read here: a capture does not keep the layer alive

        def step(x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
            return take_step(cell, weights, single, x, states)

        return CapturedFunction(step, inputs)

    def _count_changes(self) -> list[int]:
        return [t._version for t in self._state.tensors]

    def _computed_weights(self, layer: Recurrent) -> list[Weights]:
        """What each layer's step reads: the weights themselves, and tensors that are computed from them."""
        with torch.inference_mode(False), torch.no_grad():
            weights = [layer.step_weights(index) for index in range(layer.num_layers)]
            return [{name: w.detach() for name, w in each.items()} for each in weights]

    def _compute_again(self, layer: Recurrent) -> None:
        own = {t.untyped_storage().data_ptr() for t in self._state.tensors}
        for kept, now in zip(self._weights, self._computed_weights(layer), strict=True):
            for name, value in now.items():
                if value.untyped_storage().data_ptr() not in own:
                    kept[name].copy_(value)


def has_shapes_of_a_step(layer: Recurrent, x: Tensor, states: tuple[Tensor, ...]) -> bool:
    """Return True for an input and states of one step, with or without a batch."""
    front = () if layer.takes_one_step else (layer.num_layers,)
    shapes = [(*front, *x.shape[:-1], size) for size in layer.state_sizes]
    return x.dim() in (1, 2) and x.shape[-1] == layer.input_size and [s.shape for s in states] == shapes


def take_step(
    cell: Cell, weights: Sequence[Weights], single: bool, x: Tensor, states: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The output and the new states of a stack of layers, by the operations of the cell's step.

    Args:
        weights: of each layer, as `Cell.prepare` returns them.
        single: whether states have no dimension of layers.
        x, states: with or without a batch.
    """
    if x.dim() == 1:
        batch = take_step(cell, weights, single, x.unsqueeze(0), [s.unsqueeze(-2) for s in states])
        return tuple(v.squeeze(-2) for v in batch)
    news = []
    for index, each in enumerate(weights):
        before = tuple(states) if single else tuple(s[index] for s in states)
        news.append(cell.advance(cell.project(x, each), before, each))
        x = news[-1][0]
    return x, *(news[0] if single else (torch.stack(member) for member in zip(*news, strict=True)))
