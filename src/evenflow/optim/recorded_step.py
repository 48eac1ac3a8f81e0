"""A step of narrow matrices on a GPU as one recorded CUDA graph.

The step of a narrow matrix is some twenty small kernels, and handing each to the GPU from Python takes longer than
running it. After a few steps they are recorded; from then on a step is a copy of the gradient and a replay. The
recording calls the optimiser's own code, so there is no second equation to keep in step. A square matrix is moved by a
series whose length is chosen by looking at the numbers, which no recording can.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.optim.stiefel import narrow
from evenflow.runtime.recorded import attempt, familiar, take, uncollected
from evenflow.runtime.torch_state import stream_id

STEPS_BEFORE = 3  # the state exists by then, and an optimiser that makes one step is not recorded
MOST = 8  # recordings of one optimiser: shapes beyond these run without

State = dict[str, Any]
Moved = Callable[[list[Tensor], list[State], tuple[Any, ...]], Tensor]


class RecordedStep:
    """One group of parameters and their states, where they lie in memory, ready to be moved again and again."""

    def __init__(
        self, moved: Moved, grads: Sequence[Tensor], states: Sequence[State], numbers: Sequence[float]
    ) -> None:
        like = grads[0]
        self.grads = [torch.empty_like(G).copy_(G) for G in grads]
        self.numbers = tuple(torch.full((), value, dtype=like.real.dtype, device=like.device) for value in numbers)
        self.values = tuple(numbers)
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), uncollected():
            for _ in range(2):  # libraries take their workspaces before anything is recorded
                moved(self.grads, [_copied(state) for state in states], self.numbers)
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.M = moved(self.grads, list(states), self.numbers)
        torch.cuda.current_stream().wait_stream(stream)

    def move(self, grads: Sequence[Tensor], numbers: Sequence[float]) -> Tensor:
        """The matrices after a step, in the recording's memory; the states are changed in their own."""
        take(self.grads, grads)
        for known, value, number in zip(self.values, numbers, self.numbers, strict=True):
            if known != value:
                number.fill_(value)
        self.values = tuple(numbers)
        self.graph.replay()
        return self.M


def replay(
    known: dict[Any, Any],
    moved: Moved,
    parameters: Sequence[Tensor],
    grads: Sequence[Tensor],
    states: Sequence[State],
    numbers: Sequence[Any],
    fixed: tuple[Any, ...],
) -> Tensor | None:
    """The parameters after a step, by a recording; None where there is none, and nothing was done.

    Args:
        known: an optimiser's recordings, kept between calls.
        moved: the step from gradients, states, which it changes in place, and numbers.
        numbers: may change from step to step.
        fixed: what of the optimiser's settings the step depends on besides; another value is another recording.
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
    stream = stream_id(first.device)
    lying = [(p.data_ptr(), p.stride()) for p in parameters]
    lying += [(v.data_ptr(), v.stride()) for state in states for v in state.values() if isinstance(v, Tensor)]
    if len(known) > 8 * MOST:  # memory that moves from step to step
        known.clear()
    key = (stream, first.device, first.shape, first.dtype, *lying, *fixed)
    found = familiar(
        known,
        key,
        STEPS_BEFORE,
        MOST,
        lambda: attempt(lambda: RecordedStep(moved, grads, states, numbers), first.device, "A geodesic step runs"),
    )
    return None if found is None else found.move(grads, numbers)


def _copied(state: State) -> State:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
