"""The recurrent layer inside a model, torch's or ours, and its steps laid open."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from evenflow.cells import Cell, GatedFeedback, State
from evenflow.layers.named import GRU, LSTM, RNN
from evenflow.layers.recurrent import Recurrent

Layer = Recurrent | nn.RNN | nn.GRU | nn.LSTM
KINDS = (Recurrent, nn.RNN, nn.GRU, nn.LSTM)


def find_layers(model: nn.Module) -> dict[str, Layer]:
    """Every recurrent layer of a model, torch's or ours, by its place in it; ``""`` is the model itself."""
    return {name: part for name, part in model.named_modules() if isinstance(part, KINDS)}


def find_layer(model: nn.Module) -> Layer:
    """The one recurrent layer of a model; a ValueError if there is none, or more than one."""
    found = find_layers(model)
    if len(found) != 1:
        which = f"{len(found)}: {', '.join(found)}" if found else "none"
        raise ValueError(
            f"model must hold one recurrent layer, of evenflow or torch's RNN, GRU or LSTM, "
            f"got {type(model).__name__} with {which}"
        )
    return next(iter(found.values()))


def open_twin(layer: Layer) -> Recurrent:
    """The layer as one of evenflow: itself, or for a module of torch a twin that holds a copy of its weights.

    torch runs all steps in one call that shows no state in between; the twin gives the same outputs and shows them.
    """
    if isinstance(layer, Recurrent):
        return layer
    if not isinstance(layer, KINDS):
        kind = type(layer).__name__
        raise ValueError(f"layer must be a recurrent one, of evenflow or torch's RNN, GRU or LSTM, got {kind}")
    if getattr(layer, "proj_size", 0):
        raise ValueError(f"an LSTM with proj_size {layer.proj_size} has no twin in evenflow; probe one without")
    make: Callable[..., Recurrent] = {nn.RNN: RNN, nn.GRU: GRU, nn.LSTM: LSTM}[_kind(layer)]
    like = layer.weight_hh_l0
    assert isinstance(like, Tensor)
    options: dict[str, Any] = {
        name: getattr(layer, name) for name in ("num_layers", "bias", "batch_first", "dropout", "bidirectional")
    }
    if isinstance(layer, nn.RNN):
        options["activation"] = layer.nonlinearity
    twin = make(
        layer.input_size,
        layer.hidden_size,
        **options,
        generator=torch.Generator(),  # torch's global one is left alone; every weight is written over
        device=like.device,
        dtype=like.dtype,
    )
    with torch.no_grad():
        for suffix in twin._suffixes:
            for name, value in _copied(layer, suffix).items():
                getattr(twin, name + suffix).copy_(value)
    return twin.train(layer.training).requires_grad_(False)


def _kind(layer: nn.Module) -> type:
    return next(kind for kind in (nn.RNN, nn.GRU, nn.LSTM) if isinstance(layer, kind))


def _copied(layer: nn.Module, suffix: str) -> dict[str, Tensor]:
    """Weights of a module of torch under evenflow's names; its two bias vectors become one where they only add."""
    weights = {"weight_ih": getattr(layer, f"weight_ih{suffix}"), "weight_hh": getattr(layer, f"weight_hh{suffix}")}
    H = weights["weight_hh"].shape[-1]
    if layer.bias:
        first, second = getattr(layer, f"bias_ih{suffix}"), getattr(layer, f"bias_hh{suffix}")
        if isinstance(layer, nn.GRU):
            weights["bias"] = first + torch.cat([second[: 2 * H], torch.zeros_like(second[2 * H :])])
            weights["bias_hh_n"] = second[2 * H :]
        else:
            weights["bias"] = first + second
    if isinstance(layer, nn.GRU):
        weights["weight_hh"], weights["weight_hh_n"] = weights["weight_hh"].split([2 * H, H])
    return weights


@contextmanager
def listen(layer: Layer) -> Iterator[list[Tensor]]:
    """`Recurrent.taps` for torch's modules too: inside the block their calls go through the twin."""
    twin = open_twin(layer)
    with twin.taps() as taps:
        if twin is layer:
            yield taps
            return
        layer.forward = twin.forward  # type: ignore[method-assign]
        try:
            yield taps
        finally:
            del layer.forward  # the class's own is behind it


@contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, with gradients on; its modes are put back after."""
    training = {part: part.training for part in model.modules()}
    model.eval()
    try:
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # cuDNN has no backward when not training
            yield
    finally:
        for part, mode in training.items():
            part.training = mode


def outputs_of(answer: Any) -> Any:
    """The outputs a model gave: the answer itself, or the first of a tuple such as (outputs, state)."""
    return answer[0] if isinstance(answer, tuple) and not isinstance(answer, PackedSequence) else answer


def need_sequences(name: str, x: Tensor) -> None:
    """Refuse a batch of no sequences, or of sequences without steps: there is no mean over it."""
    if x.dim() == 3 and 0 in x.shape[:2]:
        raise ValueError(
            f"{name} must hold at least one sequence of at least one time step, got shape {tuple(x.shape)}"
        )


@dataclass(frozen=True)
class Recurrence:
    """One cell's way through time: ``s_t = step(a_t, s_{t-1})``, everything detached and in float64.

    Attributes:
        inputs: a_t for t = 0..T-1, each ``(B, ...)``.
        states: T + 1 of them, ``states[0]`` the first state and ``states[t + 1]`` the one after step t; each a tuple of
            ``(B, H)``.
    """

    cell: Cell
    weights: Mapping[str, Tensor]
    inputs: tuple[Tensor, ...]
    states: tuple[State, ...]

    def step(self, t: int, state: State, copies: int = 1) -> State:
        """The state after step t, for `copies` of the batch below each other."""
        return self.cell.advance(self.inputs[t].repeat(copies, 1), state, self.weights)


def record(layer: Layer, x: Tensor) -> list[Recurrence]:
    """Run the layer on x and lay its recurrences open: one per layer and direction, in the order of the final states.

    A direction that runs back to front has its steps in that order. A gated feedback stack is a single recurrence.
    """
    if isinstance(x, PackedSequence):
        raise ValueError("x must be a tensor of sequences of one length, got packed ones")
    need_sequences("x", x)
    twin = open_twin(layer)
    calls: list[tuple[Tensor, State, Mapping[str, Tensor]]] = []
    cell, engine, every = twin.cell, twin.engine, twin.checkpoint_every

    def advance(self: Cell, a: Tensor, state: State, weights: Mapping[str, Tensor]) -> State:
        calls.append((a, state, weights))
        return cell.advance(a, state, weights)

    recording = copy.copy(cell)
    # A subclass, so that no fused scan takes it: the loop calls step once for each time step.
    recording.__class__ = type("Recording", (type(cell),), {"advance": advance})
    # And in one piece: each piece between two checkpoints would have a table of weights of its own.
    twin.cell, twin.engine, twin.checkpoint_every = recording, "reference", None
    try:
        with at_rest(twin), torch.no_grad():
            twin(x)
    finally:
        twin.cell, twin.engine, twin.checkpoint_every = cell, engine, every
    groups: dict[int, list[tuple[Tensor, State, Mapping[str, Tensor]]]] = {}
    for call in calls:
        groups.setdefault(id(call[2]), []).append(call)  # each recurrence has a table of weights of its own
    return [_recurrence(cell, group) for group in groups.values()]


def _recurrence(cell: Cell, calls: list[tuple[Tensor, State, Mapping[str, Tensor]]]) -> Recurrence:
    weights = {name: w.detach().double() for name, w in calls[0][2].items()}
    inputs = tuple(a.detach().double() for a, _, _ in calls)
    # Stepped again in float64: the states a layer of float32 saw are not exactly those of these weights.
    states = [tuple(s.detach().double() for s in calls[0][1])]
    with torch.no_grad():
        for a in inputs:
            states.append(cell.advance(a, states[-1], weights))
    return Recurrence(cell, weights, inputs, tuple(states))


def prepared(layer: Layer, member: int | None = None) -> tuple[Cell, dict[str, Tensor]]:
    """The cell and the weights of its step, detached and in float64, without a run.

    Args:
        member: which layer and direction, counted as in the final states; the top layer's forward one by default.
    """
    twin = open_twin(layer)
    if isinstance(twin.cell, GatedFeedback):
        raise ValueError("a gated feedback stack is one recurrence of all its layers, got one of them asked for")
    suffixes = twin._suffixes
    index = len(suffixes) - (2 if twin.bidirectional else 1) if member is None else member
    if not -len(suffixes) <= index < len(suffixes):
        raise ValueError(f"member must be below {len(suffixes)} for this layer, got {member}")
    with torch.no_grad():
        weights = twin.cell.prepare({name: getattr(twin, name + suffixes[index]) for name in twin._names})
    return twin.cell, {name: w.detach().double() for name, w in weights.items()}
