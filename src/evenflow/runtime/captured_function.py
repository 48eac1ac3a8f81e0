"""One function of tensors, and its backward pass, as CUDA graphs that are replayed.

Python takes longer to start a small kernel than a GPU takes to run it. A CUDA graph starts hundreds of kernels at once.
`CapturedFunction` is one function captured at one set of shapes. A capture calls the function itself, so there is no
second implementation of it. `cuda_graphs.GraphCache` decides which calls are captured.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as tree

from evenflow.runtime.torch_state import plain_tensors

FEW = 4  # tensors up to which one copy each is faster than one kernel for all, which has few blocks for a large tensor

_capturing: ContextVar[bool] = ContextVar("evenflow_capturing", default=False)


@contextmanager
def capturing() -> Iterator[None]:
    """Mark a capture of this package, whose replays check `Map.needs_recapture`, and pause garbage collection.

    If the collector destroys a graph during a capture, the capture fails.
    """
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    token = _capturing.set(True)
    try:
        yield
    finally:
        _capturing.reset(token)
        if collects:
            gc.enable()


def in_capturing() -> bool:
    """Return True inside `capturing`, and False in a capture of the user's own."""
    return _capturing.get()


def copy_into(buffers: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values to the memory from which a graph reads them."""
    if len(buffers) > FEW:
        torch._foreach_copy_(list(buffers), list(values))
        return
    for buffer, value in zip(buffers, values, strict=True):
        buffer.copy_(value)


class CapturedFunction:
    """A function of tensors at one set of shapes, to be replayed on the stream that is current at its capture.

    Args:
        function: called with the inputs and then the weights; must not read a number on the host. It returns a tuple of
            tensors if gradients are wanted, else any nest of tensors.
        inputs: copied into the memory of the graph before each replay.
        weights: read at their addresses: their values may change between replays.
        requires_grad: for each input and weight whether the backward pass computes its gradient. By default no backward
            pass is captured, and none where gradients are disabled.
        taps: how many of the last inputs exist only for their gradients. They are never copied.
        warm_up: runs before the capture, in which libraries allocate their workspaces.
        warm_up_function: runs instead of `function` in the warm-up. For a function that changes tensors in place.
        generators: those that `function` draws from, besides torch's global one; a replay draws on from their states.

    `replay` serves a function without gradients. Calling the captured function gives results that autograd can
    differentiate; the memory of the graph then belongs to this pass until its backward pass has run or its results are
    dropped, and `available` is False meanwhile.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Tensor],
        weights: Sequence[Tensor] = (),
        *,
        requires_grad: Sequence[bool] | None = None,
        taps: int = 0,
        warm_up: int = 2,
        warm_up_function: Callable[..., Any] | None = None,
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        self._serial = 0  # of the last replay; it has overwritten the tensors that earlier replays saved
        self._lock = threading.Lock()  # one thread at a time copies inputs, replays and copies outputs
        self._owner: Callable[[], object] = lambda: None
        self._forward = torch.cuda.CUDAGraph()
        for generator in generators:
            self._forward.register_generator_state(generator)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        options: dict[str, Any] = {"stream": stream, "capture_error_mode": "thread_local"}
        grad = torch.is_grad_enabled()  # leaving inference mode would enable gradients
        with (
            torch.inference_mode(False),  # tensors made in inference mode could not be used in training
            torch.set_grad_enabled(grad),
            torch.cuda.stream(stream),
            capturing(),
        ):
            copied = len(inputs) - taps
            # Aliases of the weights, so that this autograd graph is not connected to the caller's.
            members = [v.detach().clone() for v in inputs[:copied]]
            members += [v.detach() for v in (*inputs[copied:], *weights)]
            for member, flag in zip(members, requires_grad or [False] * len(members), strict=True):
                member.requires_grad_(flag)
            moving = [v for v in members if v.requires_grad] if grad else []
            for _ in range(warm_up):
                outputs = (warm_up_function or function)(*members)
                if moving:
                    self._grads = [torch.zeros_like(output) for output in outputs]
                    torch.autograd.grad(outputs, moving, self._grads, allow_unused=True)
            with torch.cuda.graph(self._forward, **options):
                outputs = function(*members)
            self._backward = []
            # One graph for a loss that depends on the first output only, one for a loss that depends on all outputs.
            for count in sorted({1, len(outputs)}) if moving else ():
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._forward.pool(), **options):
                    gradients = iter(
                        torch.autograd.grad(
                            outputs[:count],
                            moving,
                            self._grads[:count],
                            retain_graph=count < len(outputs),
                            allow_unused=True,
                        )
                    )
                    by_member = [next(gradients) if v.requires_grad else None for v in members]
                    # One tensor, so that one copy returns all. Gradients of taps are as large as the output: a further
                    # copy of them would take too long.
                    tapped = range(copied, len(inputs))
                    small = [g.flatten() for i, g in enumerate(by_member) if g is not None and i not in tapped]
                    flat = torch.cat(small) if len(small) > 1 else small[0] if small else members[0].new_empty(0)
                parts = [g if g is None or i in tapped else g.shape for i, g in enumerate(by_member)]
                self._backward.append((graph, flat, parts))
        torch.cuda.current_stream().wait_stream(stream)
        # Detached: the autograd graph would keep the function alive. Saved tensors stay in the memory of the graphs.
        self.inputs = [v.detach() for v in members[:copied]]
        self.outputs = tree.tree_map_only(Tensor, Tensor.detach, outputs)
        self._grads_are_zero = [True] * len(self._grads) if moving else []

    @property
    def available(self) -> bool:
        """False while a pass waits for its backward pass."""
        return self._owner() is None

    def replay(self, inputs: Sequence[Tensor]) -> Any:
        """Return the outputs in the memory of the graph: the next replay overwrites them."""
        copy_into(self.inputs, inputs)
        self._forward.replay()
        self._serial += 1
        return self.outputs

    def results(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return copies of the outputs, a tuple of tensors."""
        with self._lock:
            return tuple(output.clone() for output in self.replay(inputs))

    def __call__(
        self, function: Callable[..., Any], inputs: Sequence[Tensor], weights: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Return copies of the outputs, which autograd can differentiate.

        Args:
            function: the function that was captured, which the graph does not keep alive. It runs again where the
                memory of the graph was overwritten, and for second derivatives.
        """
        return _Replay.apply(function, self, len(inputs), *inputs, *weights)

    def forward(self, inputs: Sequence[Tensor], owner: object) -> tuple[tuple[Tensor, ...], int]:
        """Return the outputs and the number of the replay; `owner` lives as long as the backward pass may come."""
        with self._lock:
            outputs = self.replay(inputs[: len(self.inputs)])
            self._owner = weakref.ref(owner)
            return tuple(output.clone() for output in outputs), self._serial

    def backward(self, serial: int, grads: Sequence[Tensor | None]) -> list[Tensor | None] | None:
        """Return the gradients of inputs and weights, or None if the replay `serial` is not the last one any more."""
        with self._lock:
            if serial != self._serial:
                return None
            for i, grad in enumerate(grads):
                if grad is not None:
                    self._grads[i].copy_(grad)
                elif not self._grads_are_zero[i]:
                    self._grads[i].zero_()
                self._grads_are_zero[i] = grad is None
            graph, flat, parts = self._backward[any(grad is not None for grad in grads[1:])]
            graph.replay()
            self._serial += 1  # this replay has overwritten what the forward pass saved
            self._owner = lambda: None
            pieces = iter(flat.clone().split([part.numel() for part in parts if isinstance(part, torch.Size)]))
            return [
                next(pieces).view(part) if isinstance(part, torch.Size) else None if part is None else part.clone()
                for part in parts
            ]


class _Owner:
    """Lives as long as the autograd graph of one pass."""


class _Replay(torch.autograd.Function):
    """`apply(function, captured, count, *members)`: the first `count` members are inputs, the others weights."""

    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., Any], captured: CapturedFunction, count: int, *members: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.owner = _Owner()
        outputs, ctx.serial = captured.forward(members[:count], ctx.owner)
        ctx.function, ctx.captured = function, captured
        ctx.save_for_backward(*members)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        members, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        gradients: Sequence[Tensor | None] | None = None
        if not torch.is_grad_enabled() and plain_tensors(grads):
            gradients = ctx.captured.backward(ctx.serial, grads)
        if gradients is None:
            gradients = recomputed_gradients(ctx.function, members, needed, grads)
        return None, None, None, *(g if need else None for g, need in zip(gradients, needed, strict=True))


def recomputed_gradients(
    function: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    needed: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Run `function` again and return torch's gradients of the inputs that need one; differentiable if enabled."""
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        if not differentiable:
            inputs = [v.detach().requires_grad_(need) for v, need in zip(inputs, needed, strict=True)]
        moving = [v for v, need in zip(inputs, needed, strict=True) if need]
        pairs = [(output, g) for output, g in zip(function(*inputs), grads, strict=True) if g is not None]
        gradients = iter(
            torch.autograd.grad(
                [output for output, _ in pairs],
                moving,
                [g for _, g in pairs],
                create_graph=differentiable,
                allow_unused=True,
            )
        )
    return [next(gradients) if need else None for need in needed]
