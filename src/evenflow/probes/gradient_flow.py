"""How much of the loss's gradient reaches back to each time step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenflow.checks import one_of
from evenflow.probes.recurrence import at_rest, find_layer, listen, need_sequences, outputs_of

LAYERS = ("top", "all")


def gradient_flow(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    lengths: Tensor | None = None,
    *,
    layers: str = "top",
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """``‖∂L/∂h_t‖`` for every step t, averaged over the batch.

    Shapes:
        inputs as the model takes them; result ``(T,)``, or ``(num_layers * directions, T)`` with all layers.

    Args:
        model: any module that holds one recurrent layer, of evenflow or torch's RNN, GRU or LSTM, and gives its outputs
            or a tuple that begins with them.
        loss: of outputs and targets; a mean over the batch, whose size is multiplied out again.
        lengths: the steps of each sequence, for a model that takes them; steps beyond a sequence's end count as zero.
        layers: ``"top"``, the last layer, of a bidirectional one its forward direction; or ``"all"``, each layer and
            direction in the order of the final states, t counted as in the input.

    A vanishing gradient falls towards the first step, an exploding one rises. Neither the model's gradients nor its
    mode nor any random state is changed; dropout is off. torch's modules are stepped through by a twin with the same
    weights; an LSTM's c_t is held fixed, as in any ∂L/∂h_t.

    >>> flow = gradient_flow(model, batch.inputs, batch.targets, task.loss)
    >>> flow[0] / flow[-1]  # what is left of it at the first step
    """
    one_of("layers", layers, LAYERS)
    layer = find_layer(model)
    with at_rest(model), listen(layer) as taps:
        answer = model(inputs) if lengths is None else model(inputs, lengths=lengths)
        value = loss(outputs_of(answer), targets)
        if not taps:
            raise ValueError(f"model must call its recurrent layer, got {type(model).__name__} that did not")
        need_sequences("inputs", taps[0])
        directions = 2 if layer.bidirectional else 1
        members = layer.num_layers * directions
        chosen = range(members) if layers == "all" else [members - directions]
        # By the taps alone, so that no parameter's gradient is touched. A layer that is called several times, once for
        # each step perhaps, has one tap for each call.
        wanted = [[tap for index, tap in enumerate(taps) if index % members == member] for member in chosen]
        flat = [tap for member in wanted for tap in member]
        flows = torch.autograd.grad(value, flat, allow_unused=True)
    found = iter(torch.zeros_like(tap) if flow is None else flow for tap, flow in zip(flat, flows, strict=True))
    norms = [torch.cat([_norms(next(found)) for _ in member]) for member in wanted]
    return (torch.stack(norms) if layers == "all" else norms[0]).cpu().numpy()


def _norms(flow: Tensor) -> Tensor:
    """The mean over the batch times its size, ``(T,)``; rows are zero beyond a sequence's end."""
    return torch.linalg.vector_norm(flow.double(), dim=-1).mean(1) * flow.shape[1]
