"""What each layer did in a forward pass, kept so that any of its steps can be looked at by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evenflow.cells import Weights
from evenflow.layers.recurrent import Recurrent
from evenflow.layers.sequences import Sequences


@dataclass
class Run:
    """One layer and direction run over one batch.

    Shapes:
        x ``(T, B, I)``; states ``(T, B, H)``, the layer's output; tap, if any, zeros ``(T, B, H)`` whose gradient is
        ∂L/∂h_t; initial ``(B, H)`` as the caller gave it, or None. Rows of packed input stand longest first.
    """

    layer: Recurrent
    index: int
    x: Tensor
    states: Tensor
    initial: Tensor | None
    sequences: Sequences
    tap: Tensor | None

    @property
    def suffix(self) -> str:
        return self.layer._suffixes[self.index]

    @property
    def starts_learned(self) -> bool:
        return self.initial is None and self.layer.initial_state == "learned"

    def weights(self) -> Weights:
        """The layer's weights as its cell reads them, a mapped matrix as the map makes it."""
        return {name: getattr(self.layer, name + self.suffix) for name in self.layer._names}

    def previous(self) -> Tensor:
        """h_{t-1} for every step t, ``(T, B, H)``, as constants."""
        first = self.initial
        if first is None:
            first = torch.zeros_like(self.states[0])
            if self.starts_learned:
                first = first + getattr(self.layer, f"h0{self.suffix}")
        return torch.cat([first.unsqueeze(0), self.states[:-1]]).detach()

    def running(self) -> Tensor | None:
        """Which sequences still run at each step, ``(T, B)``; None where all do."""
        sizes = self.sequences.batch_sizes
        if sizes is None:
            return None
        device = self.states.device
        return torch.arange(self.states.shape[1], device=device) < torch.tensor(sizes, device=device).unsqueeze(1)

    def step(self, weights: Weights, x: Tensor, previous: Tensor) -> Tensor:
        """One step from each row of `previous`, all at once: h ``(..., B, H)``, no step following another."""
        cell = self.layer.cell
        ready = cell.prepare(weights)
        rows = cell.project(x, ready), previous
        shape = previous.shape[:-1]
        (h,) = cell.advance(rows[0].flatten(0, -2), (rows[1].flatten(0, -2),), ready)
        return h.unflatten(0, shape)


@contextmanager
def listen(model: nn.Module, *, taps: bool = False) -> Iterator[list[Run]]:
    """Note what every layer of evenflow in `model` does inside the block, in the order they run.

    Args:
        taps: also listen to ∂L/∂h_t, see `Recurrent.taps`.

    >>> with listen(model) as runs:
    ...     outputs, _ = model(inputs)
    >>> runs[0].states.shape
    """
    runs: list[Run] = []
    layers = [part for part in model.modules() if isinstance(part, Recurrent)]
    with ExitStack() as stack:
        for layer in layers:
            if taps:
                stack.enter_context(layer.taps())
            stack.enter_context(_noting(layer, runs))
        yield runs


@contextmanager
def _noting(layer: Recurrent, runs: list[Run]) -> Iterator[None]:
    before = layer.__dict__.get("_run")
    run = layer._run

    def noted(x: Tensor, index: int, sequences: Sequences, state: list[Tensor] | None) -> tuple[Tensor, ...]:
        states = run(x, index, sequences, state)
        tap = layer._taps[-1] if layer._taps is not None else None
        # What is stored in half precision is looked at in the layer's own.
        seen, h = (x, states[0]) if layer.storage is None else (x.to(states[1].dtype), states[0].to(states[1].dtype))
        runs.append(Run(layer, index, seen, h, None if state is None else state[0], sequences, tap))
        return states

    layer._run = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        if before is None:
            del layer._run
        else:
            layer._run = before  # type: ignore[method-assign]


def need_plain_steps(runs: list[Run], user: str) -> None:
    """Refuse runs whose steps cannot be taken one by one from h_{t-1} alone."""
    if not runs:
        raise ValueError(f"{user} needs a recurrent layer of evenflow other than gated feedback, got none that ran")
    for run in runs:
        cell = run.layer.cell
        if cell.state_size != 1:
            raise ValueError(f"{user} needs a cell whose state is one vector, got {cell.name} with two")
        if run.layer.bidirectional:
            raise ValueError(f"{user} needs layers that run one way, got a bidirectional one")
