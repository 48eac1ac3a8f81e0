"""Layers of torch from layers of evenflow with the same equation, and the reverse, weights included."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from evenflow.cells import GRUStep, LSTMStep, ProjectedLSTM, Regularised
from evenflow.layers.named import GRU, LSTM, RNN
from evenflow.layers.recurrent import Recurrent
from evenflow.layers.torch_weights import torch_state

NONLINEARITIES = ("tanh", "relu")  # those of torch.nn.RNN
SHARED = ("num_layers", "bias", "batch_first", "dropout", "bidirectional")


def from_torch(module: nn.RNNBase, **options: Any) -> Recurrent:
    """The evenflow layer that computes what a layer of torch computes, with a copy of its weights.

    Args:
        module: a `torch.nn.RNN`, `torch.nn.GRU` or `torch.nn.LSTM`.
        options: further arguments of the evenflow layer, such as ``engine`` or ``checkpoint_every``.

    >>> layer = from_torch(torch.nn.LSTM(2, 128, num_layers=2, batch_first=True))
    >>> output, (h_n, c_n) = layer(torch.randn(50, 784, 2))
    """
    if not isinstance(module, nn.RNN | nn.GRU | nn.LSTM):
        raise ValueError(f"module must be a torch.nn.RNN, GRU or LSTM, got {type(module).__name__}")
    weight = next(module.parameters())
    shared: dict[str, Any] = {name: getattr(module, name) for name in SHARED}
    shared |= {"device": weight.device, "dtype": weight.dtype} | options
    layer: Recurrent
    if isinstance(module, nn.LSTM):
        shared["proj_size"] = module.proj_size
    if isinstance(module, nn.RNN):
        layer = RNN(module.input_size, module.hidden_size, activation=module.nonlinearity, **shared)
    else:
        layer = (GRU if isinstance(module, nn.GRU) else LSTM)(module.input_size, module.hidden_size, **shared)
    layer.load_state_dict(module.state_dict())
    return layer.train(module.training)


def to_torch(layer: Recurrent) -> nn.RNNBase:
    """The layer of torch that computes what an evenflow layer computes, with a copy of its weights.

    A mapped matrix becomes the matrix that the map computes, and is free from then on. A ValueError says why there is
    no such layer of torch.

    >>> to_torch(evenflow.create("factorized", 2, 128))
    RNN(2, 128)
    """
    if reason := _difference(layer):
        kind = parametrize.type_before_parametrizations(layer).__name__
        raise ValueError(f"torch has no layer with the equation of this {kind}: {reason}")
    weight = next(layer.parameters())
    sizes = layer.input_size, layer.hidden_size
    shared: dict[str, Any] = {name: getattr(layer, name) for name in SHARED}
    shared |= {"device": weight.device, "dtype": weight.dtype}
    module: nn.RNNBase
    if isinstance(layer, RNN):
        module = nn.RNN(*sizes, nonlinearity=str(layer.cell.settings()["activation"]), **shared)
    else:
        if isinstance(layer, LSTM):
            shared["proj_size"] = layer.proj_size
        module = (nn.GRU if isinstance(layer, GRU) else nn.LSTM)(*sizes, **shared)
    module.load_state_dict(torch_state(layer))
    return module.train(layer.training)


def _difference(layer: Recurrent) -> str | None:
    """Why no layer of torch computes what this one computes; None where one does."""
    if not isinstance(layer, RNN | GRU | LSTM):
        return "torch has RNN, GRU and LSTM only"
    if layer.initial_state != "zero":
        return f"its initial state is {layer.initial_state}, not zero"
    settings = layer.cell.settings()
    if isinstance(layer.cell, Regularised):
        return f"it has {' and '.join(layer.cell.options())}"
    if isinstance(layer, RNN):
        if layer.cell.name != "Elman":
            return "it has a leak"
        if settings["activation"] not in NONLINEARITIES:
            return f"its activation is {settings['activation']}, not {' or '.join(NONLINEARITIES)}"
        if "gain" in settings:
            return f"its gain is {settings['gain']}, not 1"
    if not isinstance(layer, RNN) and type(layer.cell) not in (GRUStep, LSTMStep, ProjectedLSTM):
        return f"its form is that of {layer.cell.name}"
    return None
