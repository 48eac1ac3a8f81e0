"""Penalties on the states: on how much their norm changes, and on how much a step changes the gradient's norm."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from evenflow.layers.layer_run import LayerRun
from evenflow.penalties.penalty import Penalty, Watched
from evenflow.probes.model_layer import need_plain_steps


class Stabilizer(Penalty):
    """``β mean_t (|h_t| - |h_{t-1}|)²``, a mean over steps, sequences and layers: states keep their norm.

    Args:
        strength: β, 50 by default; the paper uses 50 to 500.

    Note on the first step: the paper's sum starts with |h_0|, and a zero h_0 would pull h_1 to zero. Here it starts
    with the first two states of the sequence.

    >>> with Stabilizer(50).watch(model) as extra:
    ...     loss = task.loss(model(batch.inputs)[0], batch.targets)
    ...     total = loss + extra(loss)
    >>> bool(total >= loss)
    True

    Reference: Krueger and Memisevic 2016.
    """

    name, equation, reads_states = "stabilizer", "β mean (|h_t| - |h_{t-1}|)²", True
    default_strength = 50.0

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        if not watched.states:
            raise ValueError(f"{self.name} needs a model with a recurrent layer, got none that ran")
        return torch.stack([_mean_change(h, running) for h, running in watched.states]).mean()


def _mean_change(h: Tensor, running: Tensor | None) -> Tensor:
    if len(h) < 2:
        return h.sum() * 0
    squares = torch.linalg.vector_norm(h, dim=-1).diff(dim=0).square()
    if running is None:
        return squares.mean()
    both = running[1:]  # a sequence that runs at a step ran at the previous one
    return torch.where(both, squares, torch.zeros_like(squares)).sum() / both.sum().clamp(min=1)


class NormPreserving(Penalty):
    """``Ω = λ Σ_t (|g_{t+1} ∂h_{t+1}/∂h_t| / |g_{t+1}| - 1)²`` with g = ∂L/∂h, a mean over the sequences.

    A step of the backward pass should keep the norm of the gradient. The sum is over steps and layers.

    Args:
        strength: λ, 1 by default; the paper tries 0.5 to 4.

    It needs one more backward pass, for g at all steps; the products with the Jacobians are then computed at all steps
    in parallel. The layers must run one way and their state must be one vector; an LSTM raises an error.

    Note on what is constant: g, h_t and the layer's input are, and the gradient is by the weights inside the Jacobian
    only, as in Pascanu et al. ("immediate"); Galvan's 2.18 does not say. A step where g is zero is left out.

    >>> with NormPreserving(1.0).watch(model) as extra:
    ...     loss = task.loss(model(batch.inputs)[0], batch.targets)
    ...     total = loss + extra(loss)
    >>> bool(total >= loss)
    True

    References: Pascanu et al. 2013; Galvan, 2.2.1.
    """

    name, equation = "norm_preserving", "λ Σ (|g ∂h/∂h| / |g| - 1)²"
    reads_states, reads_gradients = True, True

    def value(self, watched: Watched, loss: Tensor) -> Tensor:
        need_plain_steps(watched.runs, self.name)
        taps = [cast(Tensor, run.tap) for run in watched.runs]
        gradients = torch.autograd.grad(loss, taps, retain_graph=True, allow_unused=True, materialize_grads=True)
        return torch.stack([_omega(run, g) for run, g in zip(watched.runs, gradients, strict=True)]).sum()


def _omega(run: LayerRun, gradient: Tensor) -> Tensor:
    g = gradient[1:]
    # Scaled before it is squared: in float32 the square of a vanishing gradient is zero long before the gradient is.
    largest = g.abs().amax(-1, keepdim=True)
    counts = largest > 0
    g = g / torch.where(counts, largest, torch.ones_like(largest))
    length = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    g = g / torch.where(counts, length, torch.ones_like(length))
    previous = run.previous()[1:].requires_grad_()
    h = run.step(run.weights(), run.x[1:].detach(), previous)
    (vjp,) = torch.autograd.grad(h, previous, g, create_graph=True)
    squares = (torch.linalg.vector_norm(vjp, dim=-1) - 1).square()
    return torch.where(counts.squeeze(-1), squares, torch.zeros_like(squares)).sum() / squares.shape[1]
