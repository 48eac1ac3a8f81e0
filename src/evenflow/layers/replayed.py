"""When a layer's passes on a GPU are replayed from recorded CUDA graphs: one there, and one back.

A pass is some thirty kernels, and for a layer of 128 units Python takes three times as long to start them as the GPU
takes to run them. After a few calls with the same shapes they are recorded; from then on a pass costs a copy in, a
replay and a copy out. The recording calls the layer's own code, so there is no second equation to keep in step.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from evenflow.layers.recording import Pass, Recording, Replayed
from evenflow.maps import Map
from evenflow.runtime.recorded import attempt, familiar
from evenflow.runtime.torch_state import (
    has_saved_tensor_hooks,
    parametrizations_are_cached,
    plain_tensors,
    stream_id,
)
from evenflow.scan import recordable

CALLS_BEFORE = 6  # one more than `training.captured` waits: what records whole updates needs no recorded layers
MOST = 4  # recordings of one layer
MOST_NUMBERS = 2**25  # in the output: beyond that kernels run longer than it takes to start them
MOST_MEMORY = 1 / 256  # of the GPU's, for the output; a recording holds several tensors as large


class _Known:
    """What is known of one layer: its weights and where they lie, and by shapes how often it ran or its recording."""

    def __init__(self, layer: nn.Module, weights: list[nn.Parameter]) -> None:
        self.weights = weights
        self.entries: dict[Hashable, Any] = {}
        self.recorded_for: Hashable = None
        # To look a weight up in its place takes a tenth of the time of asking the layer for all of them.
        parts = list(layer.modules())
        self._parts = [(held, len(held)) for part in parts for held in (part._parameters, part._buffers, part._modules)]
        held = [own for part in parts for own in (part._parameters, part._buffers)]
        self._slots = [(own, name, value) for own in held for name, value in own.items()]
        self._read = [value for _, _, value in self._slots if value is not None]  # maps have buffers
        self._buffers = [value for value in self._read if not isinstance(value, nn.Parameter)]
        self._places = [value.data_ptr() for value in self._read]
        self.device = self._read[0].device  # a reservoir has nothing but buffers

    def holds(self) -> bool:
        """Whether the layer has these weights still, at these places, and no others."""
        if any(len(held) != count for held, count in self._parts):
            return False
        same = all(slot.get(name) is found for slot, name, found in self._slots)
        return same and [value.data_ptr() for value in self._read] == self._places and not self.buffers_move()

    def buffers_move(self) -> bool:
        """Whether a gradient by a buffer is wanted, which no recording makes."""
        return any(value.requires_grad for value in self._buffers)


def _known(layer: nn.Module) -> _Known | None:
    """What is known of the layer; None where its weights, as those of a transformation or a caller, are not its own."""
    known = _layers.get(layer)
    if known is not None and known.holds():
        return known
    weights = list(layer.parameters())
    if not plain_tensors([*weights, *layer.buffers()]) or not all(isinstance(w, nn.Parameter) for w in weights):
        return None
    found = _Known(layer, weights)
    if found.buffers_move() or any(v.device != found.device or v.dtype != torch.float32 for v in weights):
        return None
    _layers[layer] = found
    return found


# Outside of the layers, which are copied and pickled.
_layers: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()


def replay_layer(layer: Any, input: Tensor, hx: Tensor | tuple[Tensor, ...] | None) -> Any:
    """What a recurrent layer gives, by a recording; None where there is none and it is to be run plainly."""
    if torch.compiler.is_compiling() or layer.checkpoint_every is not None or layer.recorded:
        return None
    tapped = layer._taps is not None
    drops = layer.training and layer.dropout and layer.num_layers > 1  # each pass another mask
    if layer.engine != "auto" or drops or not input.numel():
        return None
    if not recordable(layer.cell, max(input.shape[:-1])):
        return None
    states = () if hx is None else (hx,) if isinstance(hx, Tensor) else tuple(hx)
    size = input.numel() // layer.input_size * layer.hidden_size * len(layer.suffixes)
    chains = list(getattr(layer, "parametrizations", {}).values())
    made = [chain[0] for chain in chains]
    maps = [(part, chain) for part, chain in zip(made, chains, strict=True) if isinstance(part, Map)]
    if any(map.outgrown(*chain._parameters.values()) for map, chain in maps):  # plainly, each prepares for more
        _layers.pop(layer, None)
        return None
    own = (value for name, value in vars(layer.cell).items() if name != "programs")
    settings = (type(layer.cell).__name__, *own, *((type(p), p.extra_repr()) for p in made))
    shapes = [_states(layer, input)] * len(layer.suffixes) if tapped else []
    found = replay(layer, size, (input, *states), settings, tuple(map.recorded_for for map, _ in maps), shapes)
    if found is None:
        return None
    (output, *ends), taps = found
    if tapped:
        layer._taps.extend(taps)
    return output, ends[0] if layer.cell.state_size == 1 else tuple(ends)


def _states(layer: Any, input: Tensor) -> tuple[int, ...]:
    """The shape of all states of one direction, ``(T, B, H)``."""
    steps = (len(input), 1) if input.dim() == 2 else input.shape[:2]
    return (*(reversed(steps) if layer.batch_first and input.dim() == 3 else steps), layer.hidden_size)


@functools.cache
def _zero(device: torch.device) -> Tensor:
    """What all taps are made of: their zeros are read by nobody."""
    with torch.inference_mode(False):  # what is made there could not be used in training
        return torch.zeros((), dtype=torch.float32, device=device)


class _Flat(nn.Module):
    """A layer from tensors to tensors, as a module, which is what torch can lend other weights."""

    layer: Any

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *given: Tensor, taps: int) -> tuple[Tensor, ...]:
        states = len(given) - taps
        return self.layer._forward_tensors(*given[:states], taps=given[states:])


def passed(layer: nn.Module, weights: Sequence[Tensor], *given: Tensor, taps: int = 0) -> tuple[Tensor, ...]:
    """The pass of a layer with these weights in the place of its parameters; the last of what is given are taps."""
    names = [f"layer.{name}" for name, _ in layer.named_parameters()]
    return functional_call(_Flat(layer), dict(zip(names, weights, strict=True)), given, {"taps": taps})


def replay(
    layer: nn.Module,
    size: int,
    given: Sequence[Tensor],
    settings: tuple[Hashable, ...] = (),
    recorded_for: tuple[Hashable, ...] = (),
    taps: Sequence[tuple[int, ...]] = (),
) -> tuple[tuple[Tensor, ...], list[Tensor]] | None:
    """The results of a layer's pass by a recording and its taps, or None where it is to be run plainly.

    Args:
        size: numbers in its output.
        given: input and initial states on a GPU.
        settings: what else the pass depends on.
        recorded_for: by maps; where it changes, what was recorded is of no use any more.
        taps: the shapes of those wanted, see `Recurrent.taps`.
    """
    device = given[0].device
    if size > _most(device) or torch.cuda.is_current_stream_capturing() or _disturbed(layer):
        return None
    if not plain_tensors(given) or any(v.device != device or v.dtype != torch.float32 for v in given):
        return None
    known = _known(layer)
    if known is None or known.device != device:
        return None
    if known.recorded_for != recorded_for:  # how often the layer ran still counts
        known.entries = {key: entry for key, entry in known.entries.items() if isinstance(entry, int)}
        known.recorded_for = recorded_for
    weights = known.weights
    listening = [_zero(device).expand(shape).requires_grad_() for shape in taps]
    given = (*given, *listening)
    moving = torch.is_grad_enabled() and tuple(v.requires_grad for v in (*given, *weights))
    stream = stream_id(device)
    bits = torch.backends.cuda.matmul.fp32_precision  # of the products with the input
    key = (stream, layer.training, bits, *settings, moving, *(v.shape for v in given))
    run = functools.partial(passed, layer, taps=len(taps))
    found = familiar(known.entries, key, CALLS_BEFORE, MOST, lambda: _record(run, given, weights, len(taps)))
    if found is None or not found.free:
        return None
    return Replayed.apply(run, found, len(given), *given, *weights), listening


def _disturbed(layer: nn.Module) -> bool:
    """Whether something has a say in the pass that a recording would not hear."""
    if torch.is_autocast_enabled("cuda") or torch.is_anomaly_enabled() or parametrizations_are_cached():
        return True
    # A hook before the pass may put weights in place, and those of `torch.utils.checkpoint` count what is saved.
    return bool(layer._forward_pre_hooks) or has_saved_tensor_hooks()


def _most(device: torch.device) -> int:
    """Numbers in the output of the longest pass that is recorded."""
    if device.type != "cuda":
        return MOST_NUMBERS
    return min(MOST_NUMBERS, int(torch.cuda.get_device_properties(device).total_memory * MOST_MEMORY) // 4)


def _record(run: Pass, given: Sequence[Tensor], weights: Sequence[Tensor], taps: int) -> Recording | None:
    return attempt(lambda: Recording(run, given, weights, taps), given[0].device, "a layer runs")
