"""How much of the loss's gradient reaches back to each time step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from evenflow.checks import one_of
from evenflow.probes.model_layer import eval_mode, find_stack, layers_of, need_sequences, outputs_of, tap_states
from evenflow.probes.plotted import GradientFlow

LAYERS = ("top", "all")


def gradient_flow(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    lengths: Tensor | None = None,
    *,
    layers: str = "top",
) -> GradientFlow:
    """``‖∂L/∂h_t‖`` for every step t, averaged over the batch.

    Shapes:
        inputs as the model takes them; result ``(T,)``, or ``(num_layers * directions, T)`` with all layers.

    Args:
        model: any module that contains one recurrent layer, of evenflow or torch's RNN, GRU or LSTM, or one stack of
            residual blocks around such layers, and returns its outputs or a tuple that starts with them.
        inputs, targets: a batch.
        loss: function of outputs and targets that returns a mean over the batch; the result is multiplied by the batch
            size.
        lengths: the length of each sequence, for a model that takes lengths; steps beyond a sequence's end count as
            zero.
        layers: ``"top"``, the last layer (its forward direction if it is bidirectional); or ``"all"``, each layer and
            direction in the order of the final states, with t counted as in the input.

    A vanishing gradient falls towards the first step, an exploding one rises. The model's gradients, its mode and the
    random state are left unchanged; dropout is off. The states of torch's modules come from an evenflow layer with the
    same weights. An LSTM's c_t is held fixed, as in any ∂L/∂h_t.

    >>> flow = gradient_flow(model, batch.inputs, batch.targets, task.loss)
    >>> flow.shape, bool(flow[0] < flow[-1])  # it falls towards the first step
    ((20,), True)
    >>> flow.plot().savefig("flow.pdf")  # the result is an array of numpy with this method
    """
    one_of("layers", layers, LAYERS)
    stack = layers_of(find_stack(model))
    with eval_mode(model), ExitStack() as context:
        lists = [context.enter_context(tap_states(layer)) for layer in stack]
        value = loss(outputs_of(model, inputs, lengths), targets)
        if not all(lists):
            raise ValueError(f"model must call its recurrent layer, got {type(model).__name__} that did not")
        need_sequences("inputs", lists[0][0])
        # A layer that the model calls several times, once for each step perhaps, has one tap for each call.
        directions = [2 if layer.bidirectional else 1 for layer in stack]
        counts = [layer.num_layers * ways for layer, ways in zip(stack, directions, strict=True)]
        members = [taps[place::count] for taps, count in zip(lists, counts, strict=True) for place in range(count)]
        chosen = members if layers == "all" else [members[-directions[-1]]]
        # Gradients by the taps alone leave the parameters' gradients unchanged.
        selected = [tap for taps in chosen for tap in taps]
        gradients = iter(torch.autograd.grad(value, selected, allow_unused=True, materialize_grads=True))
    by_member = [torch.cat([_norms(next(gradients)) for _ in taps]) for taps in chosen]
    return (torch.stack(by_member) if layers == "all" else by_member[0]).cpu().numpy().view(GradientFlow)


def _norms(gradient: Tensor) -> Tensor:
    """The mean norm over the batch times the batch size, ``(T,)``; rows are zero beyond a sequence's end."""
    return torch.linalg.vector_norm(gradient.double(), dim=-1).mean(1) * gradient.shape[1]
