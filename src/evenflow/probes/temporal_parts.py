"""The parts of a model and their share in each temporal component: recurrent layer, embedding, readout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evenflow.cells import Weights
from evenflow.layers.layer_run import LayerRun
from evenflow.models.sequence_model import SequenceModel

# Numbers of per-step gradients in memory at once while their norms are computed: 64 MiB in float32.
HELD = 2**24


class TemporalPart:
    """Some of the parameters of a model, and the gradient by the copy of them that each step uses."""

    def squares(self) -> Tensor:
        """The squared norm ``(T)`` of each component, over the trained parameters of this part."""
        raise NotImplementedError

    def weighted(self, coefficients: Tensor) -> Tensor:
        """A scalar whose gradient by the parameters is Σ_t c_t ∇L|_t."""
        raise NotImplementedError


class LayerPart(TemporalPart):
    """The weights of one layer, h_t = step(x_t, h_{t-1}).

    Args:
        run: the recorded run of the layer.
        d_states: ∂L/∂h_t, ``(T, B, H)``.
    """

    def __init__(self, run: LayerRun, d_states: Tensor) -> None:
        self.run, self.d_states, self.previous = run, d_states, run.previous()

    def weighted(self, coefficients: Tensor) -> Tensor:
        run, weights = self.run, self.run.weights()
        # Only an embedding comes before the first layer; its copy is used at the same step.
        x, previous = run.x if run.index == 0 else run.x.detach(), self.previous
        if run.starts_learned:
            previous = torch.cat([weights["h0"].expand_as(previous[:1]), previous[1:]])
        coefficients = coefficients[: len(run.x)]
        return (coefficients.view(-1, 1, 1) * self.d_states * run.step(weights, x, previous)).sum()

    def squares(self) -> Tensor:
        run = self.run
        with torch.enable_grad():  # a mapped matrix counts as trained if it requires a gradient
            weights = run.weights()
        trained = {name: w.detach() for name, w in weights.items() if w.requires_grad}
        if not trained:
            return torch.zeros(len(self.d_states), dtype=torch.float64, device=self.d_states.device)
        fixed = {name: w.detach() for name, w in weights.items()}
        first = torch.zeros_like(self.d_states[:, 0, 0])
        first[:1] = 1  # not first[0] = 1, which copies a number from the host: a CUDA graph cannot capture that

        def share(trained: Weights, x: Tensor, previous: Tensor, d: Tensor, first: Tensor) -> Tensor:
            if run.starts_learned and "h0" in trained:  # only the first step uses the initial state
                previous = previous + first * (trained["h0"] - trained["h0"].detach())
            return (run.step({**fixed, **trained}, x, previous) * d).sum()

        gradients = torch.func.vmap(torch.func.grad(share), in_dims=(None, 0, 0, 0, 0))
        size = max(1, HELD // sum(w.numel() for w in trained.values()))
        members = (run.x.detach(), self.previous, self.d_states, first)
        chunks = zip(*(member.split(size) for member in members), strict=True)
        return torch.cat([_squares(gradients(trained, *chunk).values()) for chunk in chunks])


class EmbeddingPart(TemporalPart):
    """The embedding: step t reads the rows of its symbols.

    Args:
        layer: the part of the first layer, which reads the embedding.
        inputs: the symbols, ``(T, B)``.
    """

    def __init__(self, layer: LayerPart, inputs: Tensor) -> None:
        packed = layer.run.sequences.packed
        order = None if packed is None else packed.sorted_indices
        self.layer = layer
        self.symbols = (inputs if order is None else inputs[:, order])[: len(layer.run.x)]

    def weighted(self, coefficients: Tensor) -> Tensor:
        return torch.zeros_like(coefficients[0])  # `LayerPart.weighted` of the first layer includes the embedding

    def squares(self) -> Tensor:
        run = self.layer.run
        x = run.x.detach().requires_grad_()
        with torch.enable_grad():
            h = run.step({name: w.detach() for name, w in run.weights().items()}, x, self.layer.previous)
        (d,) = torch.autograd.grad(h, x, self.layer.d_states)
        # Gradients of the same symbol add up, so the square is a sum over all pairs of sequences that have it.
        same = self.symbols.unsqueeze(-1) == self.symbols.unsqueeze(-2)
        return ((d.double() @ d.double().mT) * same).sum((-2, -1)).clamp(min=0)


class ReadoutPart(TemporalPart):
    """The readout, applied at every step, or at the last step of each sequence.

    Args:
        model: the model that has the readout.
        top: the recorded run of its top layer.
        d_outputs: the gradient by the outputs.
        lengths: the length of each sequence ``(B)``, if they differ.
    """

    def __init__(self, model: SequenceModel, top: LayerRun, d_outputs: Tensor, lengths: Tensor | None) -> None:
        self.model, states, packed = model, top.states.detach(), top.sequences.packed
        steps, batch, _ = states.shape
        if packed is not None and packed.unsorted_indices is not None:
            states = states[:, packed.unsorted_indices]
        if model.readout == "every":
            self.states = nn.functional.pad(states, (0, 0, 0, 0, 0, len(d_outputs) - steps))
            self.d_outputs = d_outputs
            return
        last = torch.full((batch,), steps, device=states.device) if lengths is None else lengths
        at = (last.to(states.device) - 1, torch.arange(batch, device=states.device))
        self.states = torch.zeros_like(states).index_put(at, states[at])
        self.d_outputs = states.new_zeros(steps, *d_outputs.shape).index_put(at, d_outputs)

    def weighted(self, coefficients: Tensor) -> Tensor:
        return (coefficients.view(-1, 1, 1) * self.d_outputs * self.model.answer(self.states)).sum()

    def squares(self) -> Tensor:
        hidden, output = self.model.hidden, self.model.output
        modules: list[tuple[nn.Linear, Tensor, Tensor]] = []  # each with its input and the gradient by its output
        x = self.states
        if hidden is not None:
            x = torch.relu(hidden(self.states)).detach()
            modules.append((hidden, self.states, (self.d_outputs @ output.weight.detach()) * (x > 0)))
        modules.append((output, x, self.d_outputs))
        gradients = [
            *(d.mT @ x for linear, x, d in modules if linear.weight.requires_grad),
            *(d.sum(1) for linear, _, d in modules if linear.bias.requires_grad),
        ]
        return _squares(gradients) if gradients else self.d_outputs.new_zeros(len(self.d_outputs), dtype=torch.float64)


def _squares(gradients: Any) -> Tensor:
    """The squared norms ``(T)``, in float64: the squares of small norms underflow in float32."""
    return torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=_wide(g)) ** 2 for g in gradients]).sum(0)


def _wide(g: Tensor) -> torch.dtype:
    return torch.complex128 if g.is_complex() else torch.float64
