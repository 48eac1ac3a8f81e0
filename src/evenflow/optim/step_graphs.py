"""Replay steps of matrices with few columns on a GPU from captured CUDA graphs.

Such a step takes about twenty small kernels. After a few steps it is captured; from then on a step is a copy of the
gradients and a replay. A square matrix moves by a series whose length depends on the numbers, which a graph cannot read
on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.optim.stiefel import narrow
from evenflow.runtime.captured_function import CapturedFunction
from evenflow.runtime.cuda_graphs import GraphCache
from evenflow.runtime.torch_state import stream_id

WARM_UP = 3  # steps: the state exists then, and an optimiser that makes one step is not captured
LIMIT = 8  # captures of one optimiser

State = dict[str, Any]
Move = Callable[[list[Tensor], list[State], tuple[Any, ...]], Tensor]


class CapturedStep:
    """The captured step of parameters of one shape, whose states are changed at their addresses.

    Args:
        move: see `StepGraphs.replay`.
        grads, states, numbers: those of the step at the capture.
    """

    def __init__(self, move: Move, grads: Sequence[Tensor], states: Sequence[State], numbers: Sequence[float]) -> None:
        like = grads[0]
        self.numbers = tuple(torch.full((), value, dtype=like.real.dtype, device=like.device) for value in numbers)
        self._values = tuple(numbers)
        self._captured = CapturedFunction(
            lambda *grads: move(list(grads), list(states), self.numbers),
            grads,
            warm_up_function=lambda *grads: move(list(grads), [_copied(state) for state in states], self.numbers),
        )

    def replay(self, grads: Sequence[Tensor], numbers: Sequence[float]) -> Tensor:
        """Return the parameters after a step, in the memory of the graph."""
        for before, value, number in zip(self._values, numbers, self.numbers, strict=True):
            if before != value:
                number.fill_(value)
        self._values = tuple(numbers)
        return self._captured.replay(grads)


class StepGraphs:
    """The captured steps of one optimiser."""

    def __init__(self) -> None:
        self.cache: GraphCache[CapturedStep] = GraphCache("A geodesic step runs", WARM_UP, LIMIT)

    def replay(
        self,
        move: Move,
        parameters: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[State],
        numbers: Sequence[Any],
        settings: tuple[Any, ...],
    ) -> Tensor | None:
        """Return the parameters after a step by a graph, or None, with nothing changed, where it has to run plainly.

        Args:
            move: the step from gradients, states, which it changes in place, and numbers, to the parameters.
            numbers: may change from step to step.
            settings: of the optimiser; for other values there is another graph.
        """
        first = parameters[0]
        if (
            not first.is_cuda
            or not narrow(first)
            or torch.compiler.is_compiling()
            or torch.cuda.is_current_stream_capturing()
            or not all(isinstance(value, float) for value in numbers)
            or any(type(G) is not Tensor for G in grads)
        ):
            return None
        read = [*parameters, *(v for state in states for v in state.values() if isinstance(v, Tensor))]
        if len(self.cache) > 8 * LIMIT:  # their addresses change from step to step
            self.cache.clear()
        addresses = ((v.data_ptr(), v.stride()) for v in read)
        key = (stream_id(first.device), first.device, first.shape, first.dtype, *addresses, *settings)
        captured = self.cache.get(key, first.device, lambda: CapturedStep(move, grads, states, numbers))
        return None if captured is None else captured.replay(grads, numbers)


def _copied(state: State) -> State:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
