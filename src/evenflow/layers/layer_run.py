"""A record of what one layer and direction computed in a forward pass, for probes, penalties and optimisers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evenflow.cells import State, Weights
from evenflow.layers.sequences import Sequences

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
    """

    layer: Recurrent
    index: int
    x: Tensor
    start: State
    starts_learned: bool
    states: Tensor
    sequences: Sequences
    tap: Tensor | None

    def weights(self) -> Weights:
        """The weights of this layer and direction, by their names in the cell."""
        return self.layer.direction_weights(self.index)

    def previous(self) -> Tensor:
        """h_{t-1} for every step t, ``(T, B, H)``, detached."""
        return torch.cat([self.start[0].unsqueeze(0), self.states[:-1]]).detach()

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
