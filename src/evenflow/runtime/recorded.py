"""A map on a GPU as two recorded CUDA graphs: one for the matrix, one for its gradient.

A map is a few dozen small kernels, and handing each to the GPU from Python takes longer than running it. After a few
calls with the same shapes the kernels are recorded; from then on a matrix costs a copy in, a replay and a copy out. The
recording calls the map's own code, so there is no second equation to keep in step.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from evenflow.runtime.torch_state import is_batched_gradient, is_observed, stream_id

if TYPE_CHECKING:
    from evenflow.maps.map import Map

CALLS_BEFORE = 3  # so that a matrix wanted once is not recorded
FEW = 4  # tensors up to which one copy each is faster than a kernel for all, which has few blocks for a large one
MOST = 4  # recordings of one map: shapes, dtypes and streams beyond these run without

R = TypeVar("R")


class Moves:
    """Counts what moves weights without their knowledge: replays of recorded updates, which no version counter sees."""

    count = 0


_watching = threading.local()


@contextmanager
def watched() -> Iterator[None]:
    """Recordings made here belong to somebody who asks `Map.outgrown` before each replay, and makes them anew then."""
    before = is_watched()
    _watching.on = True
    try:
        yield
    finally:
        _watching.on = before


def is_watched() -> bool:
    return getattr(_watching, "on", False)


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: an old recording destroyed in the middle of a new one would spoil it."""
    gc.collect()
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def take(own: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy what is given to where a recording reads it."""
    if len(own) > FEW:
        torch._foreach_copy_(list(own), list(given))
        return
    for to, value in zip(own, given, strict=True):
        to.copy_(value)


class Recording:
    """One map at one set of shapes, ready to be replayed on the stream it was recorded for."""

    def __init__(self, map: Map, raw: Sequence[Tensor]) -> None:
        with torch.inference_mode(False):  # what is made there could not be used in training
            self._record(map, raw)

    def _record(self, map: Map, raw: Sequence[Tensor]) -> None:
        self.serial = 0  # counts replays: the kept numbers of the last one are in the recording's memory
        map.prepare(*raw)
        self.recorded_for = map.recorded_for
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.enable_grad(), uncollected(), watched():
            leaves = [r.detach().clone().requires_grad_() for r in raw]
            for _ in range(2):  # libraries take their workspaces before anything is recorded
                W = map.compute(*leaves)
                self.G = torch.zeros_like(W)
                torch.autograd.grad(W, leaves, self.G, materialize_grads=True)
            where: dict[str, Any] = {"stream": stream, "capture_error_mode": "thread_local"}
            with torch.cuda.graph(self.forward, **where):
                W = map.compute(*leaves)
            with torch.cuda.graph(self.backward, pool=self.forward.pool(), **where):
                slopes = torch.autograd.grad(W, leaves, self.G, materialize_grads=True)
                # In one piece, so that they are copied out in one piece.
                self.slopes = torch.cat([slope.flatten() for slope in slopes]) if len(slopes) > 1 else slopes[0]
        torch.cuda.current_stream().wait_stream(stream)
        # Without the autograd graph, which knows the map and would keep both alive. What it kept stays in the memory
        # that the two recordings own.
        self.raw, self.W = [leaf.detach() for leaf in leaves], W.detach()

    def value(self, raw: Sequence[Tensor]) -> Tensor:
        take(self.raw, raw)
        self.forward.replay()
        self.serial += 1
        # A copy, because the next replay writes over the original.
        return self.W.clone()

    def slope(self, G: Tensor) -> tuple[Tensor, ...]:
        self.G.copy_(G)
        self.backward.replay()
        self.serial += 1  # it writes over what the forward replay kept, so a second pull starts from the beginning
        if len(self.raw) == 1:
            return (self.slopes.clone(),)
        pieces = self.slopes.clone().split([r.numel() for r in self.raw])
        return tuple(piece.view(r.shape) for piece, r in zip(pieces, self.raw, strict=True))


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, map: Map, recording: Recording, *raw: Tensor) -> Tensor:
        W = recording.value(raw)
        ctx.map, ctx.recording, ctx.serial = map, recording, recording.serial
        ctx.save_for_backward(*raw)
        return W

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        raw = ctx.saved_tensors
        again = torch.is_grad_enabled()
        many = is_batched_gradient(G)  # side by side, by `is_grads_batched`
        if ctx.serial == ctx.recording.serial and not again and not many:
            return None, None, *ctx.recording.slope(G)
        # Another matrix was made since, or a gradient of this gradient, or many, are wanted: from the beginning.
        with torch.enable_grad():
            leaves = raw if again else [r.detach().requires_grad_() for r in raw]
            moving = [r for r in leaves if r.requires_grad]
            found = iter(
                torch.autograd.grad(ctx.map.compute(*leaves), moving, G, create_graph=again, allow_unused=True)
            )
        return None, None, *(next(found) if r.requires_grad else None for r in leaves)


def replay(map: Map, raw: tuple[Tensor, ...]) -> Tensor | None:
    """The matrix by a recording, or None where there is none: on a CPU, at first, and inside another recording."""
    if not raw[0].is_cuda or not map.recordable or is_observed() or torch.cuda.is_current_stream_capturing():
        return None
    if any(type(r) not in (Tensor, torch.nn.Parameter) for r in raw):  # a subclass may mean something else
        return None
    device = raw[0].device
    stream = stream_id(device)
    key = (stream, device, map.extra_repr(), raw[0].dtype, *(r.shape for r in raw))  # a margin may be changed later
    if map.outgrown(*raw):
        map.recordings.clear()
        map.recordings[key] = CALLS_BEFORE
    drop_stale(map)
    found = familiar(map.recordings, key, CALLS_BEFORE, MOST, lambda: _record(map, raw))
    return None if found is None else _Replayed.apply(map, found, *raw)


def drop_stale(map: Map) -> None:
    """End the recordings made for what the map is not watched for any more; they will be made anew at once."""
    for key, entry in map.recordings.items():
        if isinstance(entry, Recording) and entry.recorded_for != map.recorded_for:
            map.recordings[key] = CALLS_BEFORE


def _record(map: Map, raw: tuple[Tensor, ...]) -> Recording | None:
    return attempt(lambda: Recording(map, raw), raw[0].device, f"{type(map).__name__} runs")


def familiar(known: dict[Any, Any], key: Hashable, calls: int, most: int, make: Callable[[], R | None]) -> R | None:
    """What was made for this key, once it had come up `calls` times; None before that, and where `most` were made.

    Args:
        known: by key how often it came up, what was made, or None where nothing could be; kept between calls.
    """
    found = known.get(key, 0)
    if isinstance(found, int):
        if found < calls:
            known[key] = found + 1
            return None
        made = sum(entry is not None and not isinstance(entry, int) for entry in known.values())
        found = known[key] = make() if made < most else None
    return found


def attempt(record: Callable[[], R], device: torch.device, what: str) -> R | None:
    """A recording, or None with a warning that begins with `what` where it breaks off."""
    try:
        with torch.cuda.device(device):
            return record()
    except RuntimeError as error:
        with torch.cuda.device(device):
            settle()
        reason = str(error).split("\n")[0]
        warnings.warn(f"{what} without a CUDA graph, kernel by kernel: {reason}", RuntimeWarning, stacklevel=3)
        return None


def settle() -> None:
    """A recording that broke off leaves torch's generator believing that one is under way; a whole one ends that."""
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
        torch.zeros(1, device="cuda")
