"""One layer's passes as recorded CUDA graphs, and what autograd is told of them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.runtime.recorded import take, uncollected, watched
from evenflow.runtime.torch_state import plain_tensors

Pass = Callable[..., Any]  # a list of weights, then input and initial states, to output and final states in one tuple


class Recording:
    """The passes of one layer at one set of shapes, ready to be replayed on the stream they were recorded for.

    Args:
        run: the pass.
        given: its input and initial states.
        weights: what else it reads, where they lie: their values may change from replay to replay.
        taps: how many of the last given are there for their gradients alone, and so are never copied in.
    """

    def __init__(self, run: Pass, given: Sequence[Tensor], weights: Sequence[Tensor], taps: int = 0) -> None:
        self.serial = 0  # counts replays: what the last one kept for the way back is in the recording's memory
        self._lock = threading.Lock()  # of several threads, one at a time copies in, replays and copies out
        self._waiting: Callable[[], object] = lambda: None
        self._forward = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        where: dict[str, Any] = {"stream": stream, "capture_error_mode": "thread_local"}
        grad = torch.is_grad_enabled()  # which leaving inference mode would turn on
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(grad),
            torch.cuda.stream(stream),
            uncollected(),
            watched(),
        ):
            copied = len(given) - taps
            own = [v.detach().clone().requires_grad_(v.requires_grad) for v in given[:copied]]
            listening = [v.detach().requires_grad_(v.requires_grad) for v in given[copied:]]
            own += listening
            # Not the weights themselves: where an autograd graph of the caller's is still alive, theirs would meet it.
            read = [v.detach().requires_grad_(v.requires_grad) for v in weights]
            moving = [v for v in (*own, *read) if v.requires_grad and torch.is_grad_enabled()]
            for _ in range(2):  # libraries take their workspaces before anything is recorded
                results = run(read, *own)
                self._grads = [torch.zeros_like(result) for result in results]
                if moving:
                    torch.autograd.grad(results, moving, self._grads, allow_unused=True)
            with torch.cuda.graph(self._forward, **where):
                results = run(read, *own)
            # Mostly the output alone is looked at, or the final states too.
            self._backward = []
            for count in (1, len(results)) if moving else ():
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._forward.pool(), **where):
                    slopes = torch.autograd.grad(
                        results[:count], moving, self._grads[:count], retain_graph=count == 1, allow_unused=True
                    )
                    # In one piece, so that they are copied out in one piece; a weight that plays no part has none. By
                    # a tap they are as many as the output has, too many to be copied once more.
                    large = [any(v is tap for tap in listening) for v in moving]
                    small = [s.flatten() for s, each in zip(slopes, large, strict=True) if s is not None and not each]
                    flat = torch.cat(small) if small else own[0].new_empty(0)
                found = [s if s is None or each else s.shape for s, each in zip(slopes, large, strict=True)]
                self._backward.append((graph, flat, found))
        torch.cuda.current_stream().wait_stream(stream)
        # Without the autograd graph, which knows the layer. What it kept stays in the memory that the recordings own.
        self._given, self._results = [v.detach() for v in own[:copied]], [result.detach() for result in results]
        self._zero = [True] * len(self._grads)

    @property
    def free(self) -> bool:
        """Whether no pass waits for its way back, or was dropped without one."""
        return self._waiting() is None

    def run(self, given: Sequence[Tensor], ticket: object) -> tuple[tuple[Tensor, ...], int]:
        """The results and their serial; `ticket` lives as long as the way back may still be asked for."""
        with self._lock:
            take(self._given, given[: len(self._given)])
            self._forward.replay()
            self.serial += 1
            self._waiting = weakref.ref(ticket)
            # The next replay writes over the originals.
            return tuple(result.clone() for result in self._results), self.serial

    def pull(self, serial: int, grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...] | None:
        """The gradients by all that moves; None where what the run with this serial kept is written over."""
        with self._lock:
            if serial != self.serial:
                return None
            for i, grad in enumerate(grads):
                if grad is not None:
                    self._grads[i].copy_(grad)
                elif not self._zero[i]:
                    self._grads[i].zero_()
                self._zero[i] = grad is None
            graph, flat, found = self._backward[any(grad is not None for grad in grads[1:])]
            graph.replay()
            self.serial += 1  # it writes over what the forward replay kept, so a second pull starts from the beginning
            self._waiting = lambda: None
            pieces = iter(flat.clone().split([each.numel() for each in found if isinstance(each, torch.Size)]))
            return tuple(next(pieces).view(each) if isinstance(each, torch.Size) else _copy(each) for each in found)


def _copy(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.clone()


class _Ticket:
    pass


class Replayed(torch.autograd.Function):
    """A pass by a recording: `apply(run, recording, count, *given, *weights)`, where `count` are given."""

    @staticmethod
    def forward(ctx: Any, run: Pass, recording: Recording, count: int, *members: Tensor) -> tuple[Tensor, ...]:
        ctx.ticket = _Ticket()
        results, ctx.serial = recording.run(members[:count], ctx.ticket)
        ctx.run, ctx.recording, ctx.count = run, recording, count
        ctx.save_for_backward(*members)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        members = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        again = torch.is_grad_enabled() or not plain_tensors(grads)
        pulled = None if again else ctx.recording.pull(ctx.serial, grads)
        if pulled is None:
            # Another pass was made since, or a gradient of this one, or many side by side, is wanted: run it again.
            pulled = _again(ctx.run, members, ctx.count, wanted, grads)
        found = iter(pulled)
        return None, None, None, *(next(found) if want else None for want in wanted)


def _again(
    run: Pass, members: Sequence[Tensor], count: int, wanted: Sequence[bool], grads: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
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
            allow_unused=True,
        )
