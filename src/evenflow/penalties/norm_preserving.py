"""A penalty on steps that shorten or stretch the gradient on its way back."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from evenflow.layers.layer_run import LayerRun
from evenflow.penalties.penalty import Penalty, Watched
from evenflow.probes.model_layer import need_plain_steps


class NormPreserving(Penalty):
    """``Ω = λ Σ_t (|g_{t+1} ∂h_{t+1}/∂h_t| / |g_{t+1}| - 1)²`` with g = ∂L/∂h, a mean over the sequences.

    One step back must keep the length of the gradient that it is handed. The sum is over the steps and the layers.

    Args:
        strength: λ; the paper tries 0.5 to 4.

    It takes one backward pass more, for g at all steps; the Jacobian's products are then taken at all steps side by
    side. Layers whose state is one vector and which run one way; an LSTM is refused.

    Note on what is constant: g, h_t and the layer's input are, and the gradient is by the weights inside the Jacobian
    alone, as in Pascanu et al. ("immediate"); Galvan's 2.18 leaves this unsaid. A step where g is zero is left out.

    References: Pascanu et al. 2013; Galvan, 2.2.1.
    """

    name, equation, listens, taps = "norm_preserving", "λ Σ (|g ∂h/∂h| / |g| - 1)²", True, True

    def __init__(self, strength: float = 1.0) -> None:
        super().__init__(strength)

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        need_plain_steps(watched.runs, self.name)
        taps = [cast(Tensor, run.tap) for run in watched.runs]
        gradients = torch.autograd.grad(loss, taps, retain_graph=True, allow_unused=True, materialize_grads=True)
        return torch.stack([_omega(run, g) for run, g in zip(watched.runs, gradients, strict=True)]).sum()


def _omega(run: LayerRun, gradient: Tensor) -> Tensor:
    g = gradient[1:]
    # Scaled before it is squared: a vanishing gradient's square is zero in float32 long before itself.
    largest = g.abs().amax(-1, keepdim=True)
    counts = largest > 0
    g = g / torch.where(counts, largest, torch.ones_like(largest))
    length = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    g = g / torch.where(counts, length, torch.ones_like(length))
    previous = run.previous()[1:].requires_grad_()
    h = run.step(run.weights(), run.x[1:].detach(), previous)
    (back,) = torch.autograd.grad(h, previous, g, create_graph=True)
    squares = (torch.linalg.vector_norm(back, dim=-1) - 1).square()
    return torch.where(counts.squeeze(-1), squares, torch.zeros_like(squares)).sum() / squares.shape[1]
