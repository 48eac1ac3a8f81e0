"""Replay the forward and backward passes of a recurrent layer on a GPU from captured CUDA graphs.

A pass takes about thirty kernels, and for a layer of 128 units Python takes three times as long to start them as the
GPU takes to run them. After a few calls with the same shapes and settings a pass is captured.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from evenflow.layers.weight_slots import WeightSlots
from evenflow.maps import Map
from evenflow.runtime.captured_function import CapturedFunction
from evenflow.runtime.cuda_graphs import GraphCache
from evenflow.runtime.torch_state import (
    has_saved_tensor_hooks,
    parametrizations_are_cached,
    plain_tensors,
    stream_id,
)
from evenflow.scan import can_capture

WARM_UP = 6  # calls; one more than `CapturedUpdate` waits, as a captured update needs no captured layers
LIMIT = 4  # captures of one layer
MOST_NUMBERS = 2**25  # in the output: for longer ones the kernels run longer than it takes to start them
MOST_MEMORY = 1 / 256  # of the GPU's, for the output; a capture holds several tensors as large


class LayerGraphs:
    """The captured passes of one layer, and the weights and buffers that they read at fixed addresses."""

    def __init__(self, layer: nn.Module, weights: list[nn.Parameter]) -> None:
        self.cache: GraphCache[CapturedFunction] = GraphCache("a layer runs", WARM_UP, LIMIT)
        self.layer, self.weights = weakref.ref(layer), weights
        self._cell = layer.cell
        self._slots = WeightSlots(layer)
        self._buffers = [value for value in self._slots.tensors if not isinstance(value, nn.Parameter)]
        self.device = self._slots.tensors[0].device  # a reservoir has nothing but buffers

    def __reduce__(self) -> Any:
        return type(None), ()  # the copy of a layer has no captures

    def is_valid(self, layer: nn.Module) -> bool:
        """Return True while the layer has this cell and these tensors at these addresses, and no others."""
        same = self.layer() is layer and layer.cell is self._cell
        return same and self._slots.are_unchanged() and not self.buffers_need_gradient()

    def buffers_need_gradient(self) -> bool:
        """Return True if a buffer requires a gradient, which captured passes do not compute."""
        return any(value.requires_grad for value in self._buffers)


def _valid_graphs(layer: Any) -> LayerGraphs | None:
    """Return the layer's captures, or None if its weights are not its own but those of a transform or a caller."""
    if layer.graphs is not None and layer.graphs.is_valid(layer):
        return layer.graphs
    weights = list(layer.parameters())
    if not plain_tensors([*weights, *layer.buffers()]) or not all(isinstance(w, nn.Parameter) for w in weights):
        return None
    graphs = LayerGraphs(layer, weights)
    if graphs.buffers_need_gradient():
        return None
    if any(v.device != graphs.device or v.dtype != torch.float32 for v in weights):
        return None
    layer.graphs = graphs
    return graphs


def replay_layer(layer: Any, input: Tensor, hx: Tensor | tuple[Tensor, ...] | None, resets: Any = None) -> Any:
    """Return output and final states of a layer by a captured pass, or None where the layer is to run plainly."""
    if torch.compiler.is_compiling() or layer.checkpoint_every is not None or layer.recorded:
        return None
    tapped = layer._taps is not None
    # Each pass another mask.
    drops = layer.training and (layer.cell.draws or (layer.dropout and layer.num_layers > 1))
    if layer.engine != "auto" or drops or not input.numel():
        return None
    if resets is not None and not (isinstance(resets, Tensor) and resets.dtype == torch.bool):
        return None
    if not can_capture(layer.cell, max(input.shape[:-1])):
        return None
    states = () if hx is None else (hx,) if isinstance(hx, Tensor) else tuple(hx)
    size = input.numel() // layer.input_size * layer.state_sizes[0] * len(layer.suffixes)
    chains = list(getattr(layer, "parametrizations", {}).values())
    parts = [chain[0] for chain in chains]
    maps = [(part, chain) for part, chain in zip(parts, chains, strict=True) if isinstance(part, Map)]
    if any(map.needs_recapture(*chain._parameters.values()) for map, chain in maps):
        layer.graphs = None  # the plain pass prepares each map for a larger range
        return None
    revisions = layer.cell.revision, layer.cell.core.revision
    settings = (*revisions, resets is None, *((type(p), p.extra_repr()) for p in parts))
    inputs = (input, *states, *(() if resets is None else (resets,)))
    taps = [_states_shape(layer, input)] * len(layer.suffixes) if tapped else []
    result = replay(layer, size, inputs, settings, lambda: tuple(m.captured_range for m, _ in maps), taps)
    if result is None:
        return None
    (output, *ends), zeros = result
    if tapped:
        layer._taps.extend(zeros)
    return output, ends[0] if layer.cell.state_size == 1 else tuple(ends)


def _states_shape(layer: Any, input: Tensor) -> tuple[int, ...]:
    """The shape of all states of one direction, ``(T, B, H)``."""
    steps = (len(input), 1) if input.dim() == 2 else input.shape[:2]
    return (*(reversed(steps) if layer.batch_first and input.dim() == 3 else steps), layer.state_sizes[0])


@functools.cache
def _zero(device: torch.device) -> Tensor:
    """The zero of which all taps are made: nothing reads their values."""
    with torch.inference_mode(False):  # tensors made in inference mode could not be used in training
        return torch.zeros((), dtype=torch.float32, device=device)


class TensorLayer(nn.Module):
    """A layer from tensors to tensors, as a module, whose weights `functional_call` can replace.

    Its inputs are the input, the initial states, the resets if there are any (a Boolean tensor), and then the taps.
    """

    layer: Any

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Tensor, taps: int = 0) -> tuple[Tensor, ...]:
        input, *others = inputs[: len(inputs) - taps]
        states = tuple(v for v in others if v.dtype != torch.bool)
        resets = next((v for v in others if v.dtype == torch.bool), None)
        layer = self.layer
        outer = layer._taps, layer._external_taps
        layer._taps, layer._external_taps = [] if taps else None, inputs[len(inputs) - taps :]
        try:
            hx = None if not states else states[0] if len(states) == 1 else states
            output, final = layer._forward(input, hx, resets)
        finally:
            layer._taps, layer._external_taps = outer
        return output, *((final,) if isinstance(final, Tensor) else final)


def run_with_weights(layer: nn.Module, count: int, taps: int, *members: Tensor) -> tuple[Tensor, ...]:
    """Run a layer on the first `count` members, the last `taps` of which are taps, with the others as its weights."""
    names = [f"layer.{name}" for name, _ in layer.named_parameters()]
    weights = dict(zip(names, members[count:], strict=True))
    return functional_call(TensorLayer(layer), weights, members[:count], {"taps": taps})


def replay(
    layer: Any,
    size: int,
    inputs: Sequence[Tensor],
    settings: tuple[Hashable, ...] = (),
    assumptions: Callable[[], Hashable] = tuple,
    taps: Sequence[tuple[int, ...]] = (),
) -> tuple[tuple[Tensor, ...], list[Tensor]] | None:
    """Return the outputs of a captured pass and its taps, or None where the layer is to run plainly.

    Args:
        size: of the output, in numbers.
        inputs: input, initial states and, as Booleans, resets on a GPU.
        settings: what else the pass depends on.
        assumptions: the ranges of the maps for which captured passes are valid.
        taps: the shapes of the taps, see `Recurrent.taps`.
    """
    device = inputs[0].device
    if size > _most_numbers(device) or torch.cuda.is_current_stream_capturing() or _is_disturbed(layer):
        return None
    if not plain_tensors(inputs) or any(
        v.device != device or v.dtype not in (torch.float32, torch.bool) for v in inputs
    ):
        return None
    graphs = _valid_graphs(layer)
    if graphs is None or graphs.device != device:
        return None
    zeros = [_zero(device).expand(shape).requires_grad_() for shape in taps]
    inputs, weights = (*inputs, *zeros), graphs.weights
    requires_grad = tuple(v.requires_grad for v in (*inputs, *weights))
    precision = torch.backends.cuda.matmul.fp32_precision  # of the products with the input
    moving = torch.is_grad_enabled() and requires_grad
    key = (stream_id(device), layer.training, precision, *settings, moving, *(v.shape for v in inputs))
    run = functools.partial(run_with_weights, layer, len(inputs), len(taps))

    def capture() -> CapturedFunction:
        return CapturedFunction(run, inputs, weights, requires_grad=requires_grad, taps=len(taps))

    captured = graphs.cache.get(key, device, capture, assumptions)
    if captured is None or not captured.available:
        return None
    return captured(run, inputs, weights), zeros


def _is_disturbed(layer: nn.Module) -> bool:
    """Return True under settings and hooks that a captured pass would not follow."""
    if torch.is_autocast_enabled("cuda") or torch.is_anomaly_enabled() or parametrizations_are_cached():
        return True
    # A hook before the pass may replace weights, and those of `torch.utils.checkpoint` count the saved tensors.
    return bool(layer._forward_pre_hooks) or has_saved_tensor_hooks()


def _most_numbers(device: torch.device) -> int:
    """The size of the largest output whose pass is captured."""
    if device.type != "cuda":
        return MOST_NUMBERS
    return min(MOST_NUMBERS, int(torch.cuda.get_device_properties(device).total_memory * MOST_MEMORY) // 4)
