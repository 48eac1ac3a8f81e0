"""A layer unrolled over time in float64: the input and the state of every step, each of which can be run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from evenflow.cells import Cell, GatedFeedback, State
from evenflow.layers.layer_run import LayerRun
from evenflow.probes.model_layer import Layer, as_evenflow_layer, eval_mode, need_sequences


@dataclass(frozen=True)
class Unrolled:
    """One layer and direction as ``s_t = step(a_t, s_{t-1})``, all tensors detached and in float64.

    Attributes:
        cell, weights: the equations of a step, and the weights that the step reads.
        inputs: a_t, the projected input, for t = 0..T-1, each ``(B, ...)``.
        states: T + 1 states, ``states[0]`` before the first step and ``states[t + 1]`` after step t; each a tuple of
            ``(B, H)``.
    """

    cell: Cell
    weights: Mapping[str, Tensor]
    inputs: tuple[Tensor, ...]
    states: tuple[State, ...]

    def step(self, t: int, state: State, copies: int = 1) -> State:
        """The state after step t, for `copies` of the batch stacked along the rows."""
        return self.cell.advance(self.inputs[t].repeat(copies, 1), state, self.weights)


def unroll(layer: Layer, x: Tensor) -> list[Unrolled]:
    """Run the layer on x and unroll each layer and direction, in the order of the final states.

    A reverse direction has its steps back to front. A gated feedback stack is unrolled as one.
    """
    if isinstance(x, PackedSequence):
        raise ValueError("x must be a tensor of sequences of one length, got packed ones")
    need_sequences("x", x)
    runner = as_evenflow_layer(layer)
    engine, runner.engine = runner.engine, "reference"
    try:
        with eval_mode(runner), torch.no_grad(), runner.record_runs() as runs:
            runner(x)
    finally:
        runner.engine = engine
    return [_unrolled(run) for run in runs]


@torch.no_grad()
def _unrolled(run: LayerRun) -> Unrolled:
    cell, weights = run.layer.cell, run.layer.step_weights(run.index)
    a = cell.project(run.x, weights).double()
    weights = {name: w.detach().double() for name, w in weights.items()}
    # Computed again in float64: the states of a float32 layer are not exactly those of these weights.
    states = [tuple(s.detach().double() for s in run.start)]
    for step in a:
        states.append(cell.advance(step, states[-1], weights))
    return Unrolled(cell, weights, tuple(a), tuple(states))


def step_weights(layer: Layer, member: int | None = None) -> tuple[Cell, dict[str, Tensor]]:
    """The cell and the weights of its step, detached and in float64, without running the layer.

    Args:
        member: which layer and direction, counted as in the final states; the top layer's forward one by default.
    """
    layer = as_evenflow_layer(layer)
    if isinstance(layer.cell, GatedFeedback):
        raise ValueError(
            "a gated feedback stack is one recurrence of all its layers, and its layers have no steps of their own"
        )
    with torch.no_grad():
        weights = layer.step_weights(member_index(layer, member, len(layer.suffixes)))
    return layer.cell, {name: w.detach().double() for name, w in weights.items()}


def member_index(layer: Layer, member: int | None, members: int) -> int:
    """The index of a layer and direction among `members`; the top layer's forward direction by default."""
    index = members - (2 if layer.bidirectional else 1) if member is None else member
    if not -members <= index < members:
        raise ValueError(f"member must be below {members} for this layer, got {member}")
    return index
