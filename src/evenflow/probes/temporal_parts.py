"""The parts of a model that has components in time, and what each step does with the parameters of each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from evenflow.cells import Weights
from evenflow.models.sequence_model import SequenceModel
from evenflow.probes.local_steps import Run

# Numbers of per-step gradients held at once while their norms are taken: 64 MiB in float32.
HELD = 2**24


class Part:
    """Some of the parameters, and what step t does with them."""

    def squares(self) -> Tensor:
        """The squared norm ``(T)`` of each component, over what is trained."""
        raise NotImplementedError

    def weighed(self, coefficients: Tensor) -> Tensor:
        """A number whose gradient by the parameters is Σ_t c_t ∇L|_t."""
        raise NotImplementedError


class Steps(Part):
    """The weights of one layer: h_t = step(x_t, h_{t-1}), with ∂L/∂h_t known."""

    def __init__(self, run: Run, d_states: Tensor) -> None:
        self.run, self.d_states, self.previous = run, d_states, run.previous()

    def weighed(self, coefficients: Tensor) -> Tensor:
        run, weights = self.run, self.run.weights()
        # Below the first layer there is the embedding at most, whose copy is used at the same step.
        x, previous = run.x if run.index == 0 else run.x.detach(), self.previous
        if run.starts_learned:
            previous = torch.cat([weights["h0"].expand_as(previous[:1]), previous[1:]])
        coefficients = coefficients[: len(run.x)]
        return (coefficients.view(-1, 1, 1) * self.d_states * run.step(weights, x, previous)).sum()

    def squares(self) -> Tensor:
        run = self.run
        with torch.enable_grad():  # what a map makes is trained where it has a gradient
            weights = run.weights()
        trained = {name: w.detach() for name, w in weights.items() if w.requires_grad}
        if not trained:
            return torch.zeros_like(self.d_states[:, 0, 0])
        fixed = {name: w.detach() for name, w in weights.items()}
        first = torch.zeros_like(self.d_states[:, 0, 0])
        first[:1] = 1  # and not first[0], which brings a number from the host to a GPU: no recording waits for it

        def share(trained: Weights, x: Tensor, previous: Tensor, d: Tensor, first: Tensor) -> Tensor:
            if run.starts_learned and "h0" in trained:  # the initial state is used at the first step alone
                previous = previous + first * (trained["h0"] - trained["h0"].detach())
            return (run.step({**fixed, **trained}, x, previous) * d).sum()

        gradients = torch.func.vmap(torch.func.grad(share), in_dims=(None, 0, 0, 0, 0))
        size = max(1, HELD // sum(w.numel() for w in trained.values()))
        members = (run.x.detach(), self.previous, self.d_states, first)
        chunks = zip(*(member.split(size) for member in members), strict=True)
        return torch.cat([_squares(gradients(trained, *chunk).values()) for chunk in chunks])


class Symbols(Part):
    """The embedding: step t reads the rows of its symbols. `Steps` of the first layer weighs it along."""

    def __init__(self, steps: Steps, inputs: Tensor) -> None:
        packed = steps.run.sequences.packed
        order = None if packed is None else packed.sorted_indices
        self.steps = steps
        self.symbols = (inputs if order is None else inputs[:, order])[: len(steps.run.x)]

    def weighed(self, coefficients: Tensor) -> Tensor:
        return torch.zeros_like(coefficients[0])

    def squares(self) -> Tensor:
        run = self.steps.run
        x = run.x.detach().requires_grad_()
        with torch.enable_grad():
            h = run.step({name: w.detach() for name, w in run.weights().items()}, x, self.steps.previous)
        (d,) = torch.autograd.grad(h, x, self.steps.d_states)
        # Rows of one symbol add up, so the square is over all pairs of sequences that have it.
        same = self.symbols.unsqueeze(-1) == self.symbols.unsqueeze(-2)
        return ((d @ d.mT) * same).sum((-2, -1)).clamp(min=0)


class Readout(Part):
    """The readout, used at every step, or at each sequence's last one."""

    def __init__(self, model: SequenceModel, top: Run, d_outputs: Tensor, lengths: Tensor | None) -> None:
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

    def weighed(self, coefficients: Tensor) -> Tensor:
        return (coefficients.view(-1, 1, 1) * self.d_outputs * self.model.answer(self.states)).sum()

    def squares(self) -> Tensor:
        hidden, output = self.model.hidden, self.model.output
        used: list[tuple[nn.Linear, Tensor, Tensor]] = []  # with what each is given, and the gradient by what it gives
        seen = self.states
        if hidden is not None:
            seen = torch.relu(hidden(self.states)).detach()
            used.append((hidden, self.states, (self.d_outputs @ output.weight.detach()) * (seen > 0)))
        used.append((output, seen, self.d_outputs))
        found = [
            *(d.mT @ x for linear, x, d in used if linear.weight.requires_grad),
            *(d.sum(1) for linear, _, d in used if linear.bias.requires_grad),
        ]
        return _squares(found) if found else torch.zeros_like(self.d_outputs[:, 0, 0])


def _squares(gradients: Any) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) ** 2 for g in gradients]).sum(0)
