"""The last state of a linear layer without the states before it, where that is faster."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evenflow.activations import ACTIVATIONS
from evenflow.cells import Elman
from evenflow.layers.recurrent import Recurrent
from evenflow.layers.sequences import Sequences
from evenflow.runtime.torch_state import has_global_module_hook, is_observed
from evenflow.scan.linear_final_state import final_state, pays

# Methods that run a layer: a layer that overrides one of them is called.
METHODS = ("__call__", "forward", "_forward", "_run_direction")


def last_state(layer: nn.Module, x: Tensor, hx: Tensor | None = None) -> Tensor | None:
    """h_n of the layer, ``(1, B, H)``, or None where the layer must be called, or is as fast.

    A layer without activation needs no recurrence for it, see `scan.linear_final_state`. On a CPU only, where this was
    measured to be faster.

    Args:
        layer: any layer, time first.
        x: ``(T, B, I)``.
        hx: the state before the first step, as the layer takes it.

    >>> layer = RNN(1, 256, map="rotations", activation="identity")
    >>> torch.allclose(last_state(layer, x), layer(x)[1], atol=1e-5)  # x (784, 100, 1): in a seventh of the time
    True
    """
    if not isinstance(layer, Recurrent) or not _linear(layer) or _watched(layer):
        return None
    if (
        not isinstance(x, Tensor) or not _plain(layer, x) or x.dim() != 3
    ):  # no tensor where `torch.fx` records the model
        return None
    if not pays(len(x), x.shape[1], layer.input_size, layer.hidden_size):
        return None
    sequences = Sequences.read(x, layer.input_size, batch_first=False)  # raises the errors that the layer would raise
    initial = layer._read_states(sequences, hx)
    weights = layer.step_weights(0)
    h0 = None if initial is None else initial[0][0]
    if h0 is None and layer.initial_state == "learned":
        h0 = weights["h0"].expand(x.shape[1], -1)
    h_n = final_state(x, h0, weights["weight_ih"], weights.get("bias"), weights["weight_hh"])
    return None if h_n is None else h_n.unsqueeze(0)


def _linear(layer: Recurrent) -> bool:
    """Whether the layer is one direction of ``h = W x + b + U h`` with real numbers."""
    if layer.num_layers > 1 or layer.bidirectional or layer.batch_first or type(layer.cell) is not Elman:
        return False
    return layer.cell.activation is ACTIVATIONS["identity"]


def _watched(layer: Recurrent) -> bool:
    """Whether hooks, taps, overridden methods or options require that the layer itself runs."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    own = any(name in vars(layer) or getattr(type(layer), name) is not getattr(Recurrent, name) for name in METHODS)
    if any(hooks) or own or layer.observed or has_global_module_hook():
        return True
    return layer.engine != "auto" or layer.storage is not None or layer.checkpoint_every is not None or is_observed()


def _plain(layer: Recurrent, x: Tensor) -> bool:
    """Whether x is in the dtype of the weights, float32 or float64, on a CPU without autocast."""
    alike = x.dtype == layer.weight_ih_l0.dtype and x.dtype in (torch.float32, torch.float64)
    return alike and x.device.type == layer.weight_ih_l0.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
