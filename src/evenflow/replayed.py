"""A layer's passes on a GPU as recorded CUDA graphs: one there, and one back.

A pass is some thirty kernels, and for a layer of 128 units Python takes three times as long to start them as the GPU
takes to run them. After a few calls with the same shapes they are recorded; from then on a pass costs a copy in, a
replay and a copy out. The recording calls the layer's own code, so there is no second equation to keep in step.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from evenflow.maps.recorded import settle, uncollected
from evenflow.scan import recordable
from evenflow.scan.operator import plain_tensors

CALLS_BEFORE = 6  # one more than `training.captured` waits: what records whole updates needs no recorded layers
MOST = 4  # recordings of one layer
MOST_NUMBERS = 2**25  # in the output: beyond that kernels run longer than it takes to start them
MOST_MEMORY = 1 / 256  # of the GPU's, for the output; a recording holds several tensors as large

Pass = Callable[..., Any]  # a list of weights, then input and initial states, to output and final states in one tuple


class Recording:
    """The passes of one layer at one set of shapes, ready to be replayed on the stream they were recorded for.

    Args:
        run: the pass.
        given: its input and initial states.
        weights: what else it reads, where they lie: their values may change from replay to replay.
    """

    def __init__(self, run: Pass, given: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        self.serial = 0  # counts replays: what the last one kept for the way back is in the recording's memory
        self._waiting: Callable[[], object] = lambda: None
        self._forward = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        where: dict[str, Any] = {"stream": stream, "capture_error_mode": "thread_local"}
        with torch.inference_mode(False), torch.cuda.stream(stream), uncollected():
            own = [v.detach().clone().requires_grad_(v.requires_grad) for v in given]
            # Not the weights themselves: where an autograd graph of the caller's is still alive, theirs would meet it.
            read = [v.detach().requires_grad_(v.requires_grad) for v in weights]
            moving = [v for v in (*own, *read) if v.requires_grad and torch.is_grad_enabled()]
            for _ in range(2):  # libraries take their workspaces before anything is recorded
                results = run(read, *own)
                self._grads = [torch.zeros_like(result) for result in results]
                if moving:
                    torch.autograd.grad(results, moving, self._grads, materialize_grads=True)
            with torch.cuda.graph(self._forward, **where):
                results = run(read, *own)
            # Mostly the output alone is looked at, or the final states too.
            self._backward = []
            for count in (1, len(results)) if moving else ():
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._forward.pool(), **where):
                    slopes = torch.autograd.grad(
                        results[:count], moving, self._grads[:count], retain_graph=count == 1, materialize_grads=True
                    )
                    # In one piece, so that they are copied out in one piece.
                    flat = torch.cat([slope.flatten() for slope in slopes])
                self._backward.append((graph, flat))
        torch.cuda.current_stream().wait_stream(stream)
        # Without the autograd graph, which knows the layer. What it kept stays in the memory that the recordings own.
        self._given, self._results = [v.detach() for v in own], [result.detach() for result in results]
        self._shapes = [v.shape for v in moving]
        self._zero = [True] * len(self._grads)

    @property
    def free(self) -> bool:
        """Whether no pass waits for its way back, or was dropped without one."""
        return self._waiting() is None

    def run(self, given: Sequence[Tensor], ticket: object) -> tuple[Tensor, ...]:
        """The results; `ticket` lives as long as the way back may still be asked for."""
        torch._foreach_copy_(self._given, list(given))
        self._forward.replay()
        self.serial += 1
        self._waiting = weakref.ref(ticket)
        return tuple(result.clone() for result in self._results)  # the next replay writes over the originals

    def pull(self, grads: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """The gradients by all that moves."""
        for i, grad in enumerate(grads):
            if grad is not None:
                self._grads[i].copy_(grad)
            elif not self._zero[i]:
                self._grads[i].zero_()
            self._zero[i] = grad is None
        graph, flat = self._backward[any(grad is not None for grad in grads[1:])]
        graph.replay()
        self.serial += 1  # it writes over what the forward replay kept, so a second pull starts from the beginning
        self._waiting = lambda: None
        pieces = flat.clone().split([shape.numel() for shape in self._shapes])
        return tuple(piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True))


class _Ticket:
    pass


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Pass, recording: Recording, count: int, *members: Tensor) -> tuple[Tensor, ...]:
        ctx.ticket = _Ticket()
        results = recording.run(members[:count], ctx.ticket)
        ctx.run, ctx.recording, ctx.count, ctx.serial = run, recording, count, recording.serial
        ctx.save_for_backward(*members)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        members = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        if ctx.serial == ctx.recording.serial and not torch.is_grad_enabled():
            found = iter(ctx.recording.pull(grads))
        else:  # another pass was made since, or a gradient of this gradient is wanted: from the beginning
            found = iter(_again(ctx.run, members, ctx.count, wanted, grads))
        return None, None, None, *(next(found) if want else None for want in wanted)


def _again(
    run: Pass, members: Sequence[Tensor], count: int, wanted: Sequence[bool], grads: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        own = members[:count]
        if not differentiable:
            own = [v.detach().requires_grad_(v.requires_grad) for v in own]
        moving = [v for v, want in zip((*own, *members[count:]), wanted, strict=True) if want]
        results = run(members[count:], *own)
        pulled = [(result, grad) for result, grad in zip(results, grads, strict=True) if grad is not None]
        return torch.autograd.grad(
            [result for result, _ in pulled],
            moving,
            [grad for _, grad in pulled],
            create_graph=differentiable,
            materialize_grads=True,
        )


class _Known:
    """What is known of one layer: where its weights lie, and by shapes how often it ran or its recording."""

    def __init__(self, places: Hashable) -> None:
        self.places = places
        self.entries: dict[Hashable, int | Recording | None] = {}


# Outside of the layers, which are copied and pickled.
_layers: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()


def replay_layer(layer: Any, input: Tensor, hx: Tensor | tuple[Tensor, ...] | None) -> Any:
    """What a recurrent layer gives, by a recording; None where there is none and it is to be run plainly."""
    if torch.compiler.is_compiling() or layer._taps is not None or layer.checkpoint_every is not None:
        return None
    drops = layer.training and layer.dropout and layer.num_layers > 1  # each pass another mask
    if layer.engine != "auto" or drops or not recordable(layer.cell, max(input.shape[:-1])):
        return None
    states = () if hx is None else (hx,) if isinstance(hx, Tensor) else tuple(hx)
    size = input.numel() // layer.input_size * layer.hidden_size * len(layer._suffixes)
    found = replay(layer, size, (input, *states))
    if found is None:
        return None
    return found[0], found[1] if layer.cell.state_size == 1 else found[1:]


class _Flat(nn.Module):
    """A layer from tensors to tensors, as a module, which is what torch can lend other weights."""

    layer: Any

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        return self.layer._flat(*given)


def passed(layer: nn.Module, weights: Sequence[Tensor], *given: Tensor) -> tuple[Tensor, ...]:
    """The pass of a layer with these weights in the place of its parameters."""
    names = [f"layer.{name}" for name, _ in layer.named_parameters()]
    return functional_call(_Flat(layer), dict(zip(names, weights, strict=True)), given)


def replay(layer: nn.Module, size: int, given: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """The results of a layer's pass by a recording, or None where there is none and it is to be run plainly.

    Args:
        size: numbers in its output.
        given: input and initial states on a GPU.
    """
    device = given[0].device
    if size > _most(device) or not plain_tensors(given) or torch.cuda.is_current_stream_capturing():
        return None
    if torch.is_autocast_enabled("cuda") or torch.is_anomaly_enabled() or parametrize._cache_enabled:
        return None
    weights = list(layer.parameters())
    if any(v.device != device or v.dtype != torch.float32 for v in (*given, *weights)):
        return None
    places = tuple(weight.data_ptr() for weight in weights)
    known = _layers.get(layer)
    if known is None or known.places != places:
        known = _layers[layer] = _Known(places)
    moving = torch.is_grad_enabled() and tuple(v.requires_grad for v in (*given, *weights))
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    key = (stream, layer.training, moving, *(v.shape for v in given))
    found = known.entries.get(key, 0)
    if isinstance(found, int):
        if found < CALLS_BEFORE:
            known.entries[key] = found + 1
            return None
        recorded = sum(isinstance(entry, Recording) for entry in known.entries.values())
        found = known.entries[key] = _record(partial(passed, layer), given, weights) if recorded < MOST else None
    if found is None or not found.free:
        return None
    return _Replayed.apply(partial(passed, layer), found, len(given), *given, *weights)


def _most(device: torch.device) -> int:
    """Numbers in the output of the longest pass that is recorded."""
    if device.type != "cuda":
        return MOST_NUMBERS
    return min(MOST_NUMBERS, int(torch.cuda.get_device_properties(device).total_memory * MOST_MEMORY) // 4)


def _record(run: Pass, given: Sequence[Tensor], weights: Sequence[Tensor]) -> Recording | None:
    try:
        with torch.cuda.device(given[0].device):
            return Recording(run, given, weights)
    except RuntimeError as error:
        settle()
        reason = str(error).split("\n")[0]
        warnings.warn(f"a layer runs without a CUDA graph, kernel by kernel: {reason}", RuntimeWarning, stacklevel=2)
        return None
