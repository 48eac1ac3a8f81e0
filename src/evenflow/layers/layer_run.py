"""Observation of recurrent layers by probes, penalties and optimisers: records of forward passes, and taps."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from evenflow.cells import State, Weights
from evenflow.layers.sequences import Sequences
from evenflow.runtime.picklable import Picklable

if TYPE_CHECKING:
    from evenflow.layers.recurrent import Recurrent


@dataclass
class LayerRun:
    """One layer and direction run over one batch; see `Recurrent.record_runs`.

    Attributes:
        layer: the layer.
        index: which layer and direction of the stack, in the order of the final states.
        x: the input ``(T, B, I)``; a reverse direction has it back to front.
        start: the state before the first step, ``(B, H)`` each.
        starts_learned: whether `start` is the layer's learned initial state.
        states: the output ``(T, B, H)``; of gated feedback the states of all layers side by side.
        sequences: the lengths of the batch. Rows of packed input stand longest first.
        tap: zeros ``(T, B, H)`` whose gradient is ∂L/∂h_t, inside `Recurrent.taps`; else None.
        resets: ``(T, B)``, True where the state restarts before the step; None without resets.
    """

    layer: Recurrent
    index: int
    x: Tensor
    start: State
    starts_learned: bool
    states: Tensor
    sequences: Sequences
    tap: Tensor | None
    resets: Tensor | None = None

    def weights(self) -> Weights:
        """The weights of this layer and direction, by their names in the cell."""
        return self.layer.direction_weights(self.index)

    def previous(self) -> Tensor:
        """h_{t-1} for every step t, ``(T, B, H)``, detached; where the state restarts, what it restarts from."""
        before = torch.cat([self.start[0].unsqueeze(0), self.states[:-1]]).detach()
        if self.resets is None:
            return before
        learned = self.layer.initial_state == "learned"
        start = self.layer.step_weights(self.index)["h0"].detach() if learned else before.new_zeros(())
        return torch.where(self.resets.unsqueeze(-1), start, before)

    def running(self) -> Tensor | None:
        """Which sequences still run at each step, ``(T, B)``; None if all have T steps."""
        sizes = self.sequences.batch_sizes
        if sizes is None:
            return None
        device = self.states.device
        return torch.arange(self.states.shape[1], device=device) < torch.tensor(sizes, device=device).unsqueeze(1)

    def step(self, weights: Weights, x: Tensor, previous: Tensor) -> Tensor:
        """Apply one step to each row of `previous` ``(..., B, H)``, all in parallel; returns h of the same shape."""
        cell = self.layer.cell
        ready = cell.prepare(weights)
        a = cell.project(x, ready)
        (h,) = cell.advance(a.flatten(0, -2), (previous.flatten(0, -2),), ready)
        return h.unflatten(0, previous.shape[:-1])


class ObservedLayer(Picklable):
    """A layer whose states and their gradients can be observed: the part of `Recurrent` for probes."""

    _taps: list[Tensor] | None = None
    _tapping: int  # the thread of the outermost `taps`, while there is one
    _external_taps: Sequence[Tensor] = ()  # taps made by a caller, used instead of new ones
    _records: tuple[list[LayerRun], ...] = ()  # the lists that every run is added to

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """The numbers in each state of one layer and direction; the first is the size of the output."""
        raise NotImplementedError

    @contextmanager
    def taps(self) -> Iterator[list[Tensor]]:
        """Inside the block, each scan adds a tensor to a list whose `grad`, after backward, is ∂L/∂h_t.

        One tensor ``(T, B, H)`` for each call, layer and direction, in the order of the final states. Rows of packed
        input stand longest first. Meanwhile the layer raises a RuntimeError in other threads.

        >>> with layer.taps() as taps:
        ...     output, _ = layer(x)
        >>> output[-1].sum().backward()
        >>> taps[0].grad.norm(dim=-1)  # the norm of the gradient at each step
        """
        self._check_thread(
            vars(self).setdefault("_tapping", threading.get_ident())
        )  # one operation, so no thread races
        outer, self._taps = self._taps, []
        try:
            yield self._taps
        finally:
            self._taps = outer
            if outer is None:
                del self._tapping

    def _check_thread(self, owner: int) -> None:
        """Raise a RuntimeError in another thread than that of the outermost `taps`."""
        if owner != threading.get_ident():
            raise RuntimeError(
                f"this {type(self).__name__} is inside taps() in another thread, which would get the taps of this one: "
                "give each thread a copy of the layer (copy.deepcopy)"
            )

    @contextmanager
    def record_runs(self, runs: list[LayerRun] | None = None) -> Iterator[list[LayerRun]]:
        """Inside the block, add a `LayerRun` to a list for each layer and direction that runs, in that order.

        Args:
            runs: the list, if several layers are to share one; a new one by default.

        >>> with layer.record_runs() as runs:
        ...     output, _ = layer(x)
        >>> runs[0].states.shape
        torch.Size([100, 50, 128])
        """
        runs = [] if runs is None else runs
        outer, self._records = self._records, (*self._records, runs)
        try:
            yield runs
        finally:
            self._records = outer

    @property
    def recorded(self) -> bool:
        """True inside `record_runs`: every step must be computed by this layer itself."""
        return bool(self._records)

    @property
    def observed(self) -> bool:
        """True inside `record_runs` or `taps`."""
        return self.recorded or self._taps is not None

    def _record_run(
        self,
        index: int,
        x: Tensor,
        start: Sequence[Tensor],
        learned: bool,
        states: Tensor,
        sequences: Sequences,
        resets: Tensor | None,
    ) -> None:
        """Add a run to all lists of `record_runs`."""
        tap = self._taps[-1] if self._taps else None
        for runs in self._records:
            call = (x, tuple(start), learned, states, sequences, tap, resets)
            runs.append(LayerRun(cast("Recurrent", self), index, *call))

    def _new_tap(self, steps: Sequence[int], like: Tensor) -> Tensor:
        """Zeros ``(T, B, H)``, whose gradient is wanted, appended to the taps."""
        assert self._taps is not None
        if self._external_taps:
            zeros, *self._external_taps = self._external_taps
        else:
            if not torch.compiler.is_compiling():
                self._check_thread(getattr(self, "_tapping", threading.get_ident()))
            # Not `new_zeros`, of which `torch.compile` makes no leaf.
            zeros = torch.zeros(*steps, self.state_sizes[0], dtype=like.dtype, device=like.device, requires_grad=True)
        self._taps.append(zeros)
        return zeros
