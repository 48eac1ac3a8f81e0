"""Layers and cells of torch from those of evenflow with the same equation, and the reverse, weights included."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from evenflow.cells import GRUStep, LSTMStep, ProjectedLSTM, Regularised
from evenflow.layers.cell_modules import GRUCell, LSTMCell, RecurrentCell, RNNCell
from evenflow.layers.named import GRU, LSTM, RNN
from evenflow.layers.recurrent import Recurrent
from evenflow.layers.torch_weights import torch_state

NONLINEARITIES = ("tanh", "relu")  # those of torch.nn.RNN
SHARED = ("num_layers", "bias", "batch_first", "dropout", "bidirectional")
KINDS: tuple[tuple[type[Recurrent], type[nn.Module]], ...] = (
    (RNN, nn.RNN),
    (GRU, nn.GRU),
    (LSTM, nn.LSTM),
    (RNNCell, nn.RNNCell),
    (GRUCell, nn.GRUCell),
    (LSTMCell, nn.LSTMCell),
)


def from_torch(module: nn.RNNBase | nn.RNNCellBase, **options: Any) -> Recurrent:
    """The evenflow layer or cell that computes what a layer or cell of torch computes, with a copy of its weights.

    Args:
        module: a `torch.nn.RNN`, `GRU` or `LSTM`, or a `torch.nn.RNNCell`, `GRUCell` or `LSTMCell`.
        options: further arguments of the evenflow layer, such as ``engine`` or ``checkpoint_every``.

    >>> layer = from_torch(torch.nn.LSTM(2, 128, num_layers=2, batch_first=True))
    >>> output, (h_n, c_n) = layer(torch.randn(50, 784, 2))
    """
    kind = next((ours for ours, theirs in KINDS if isinstance(module, theirs)), None)
    if kind is None:
        raise ValueError(f"module must be a torch.nn.RNN, GRU or LSTM, or a cell of them, got {type(module).__name__}")
    weight = next(module.parameters())
    arguments = {name: getattr(module, name) for name in (SHARED if isinstance(module, nn.RNNBase) else ("bias",))}
    arguments |= {"device": weight.device, "dtype": weight.dtype} | options
    if isinstance(module, nn.LSTM):
        arguments["proj_size"] = module.proj_size
    if isinstance(module, nn.RNN | nn.RNNCell):
        arguments["nonlinearity"] = module.nonlinearity
    layer = kind(module.input_size, module.hidden_size, **arguments)  # type: ignore[arg-type]  # of RNN and so on
    layer.load_state_dict(module.state_dict())
    return layer.train(module.training)


def to_torch(layer: Recurrent) -> nn.RNNBase | nn.RNNCellBase:
    """The layer or cell of torch that computes what one of evenflow computes, with a copy of its weights.

    A mapped matrix becomes the matrix that the map computes, and is free from then on. A ValueError says why there is
    no such layer of torch.

    >>> to_torch(evenflow.create("factorized", 2, 128))
    RNN(2, 128)
    """
    if reason := _difference(layer):
        name = parametrize.type_before_parametrizations(layer).__name__
        what = "cell" if isinstance(layer, RecurrentCell) else "layer"
        raise ValueError(f"torch has no {what} with the equation of this {name}: {reason}")
    weight = next(layer.parameters())
    kind: Any = next(theirs for ours, theirs in KINDS if isinstance(layer, ours))
    arguments: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype, "bias": layer.biased}
    if not isinstance(layer, RecurrentCell):
        arguments |= {name: getattr(layer, name) for name in SHARED}
    if isinstance(layer, LSTM):
        arguments["proj_size"] = layer.proj_size
    if isinstance(layer, RNN | RNNCell):
        arguments["nonlinearity"] = str(layer.cell.settings()["activation"])
    module: nn.RNNBase | nn.RNNCellBase = kind(layer.input_size, layer.hidden_size, **arguments)
    module.load_state_dict(torch_state(layer))
    return module.train(layer.training)


def _difference(layer: Recurrent) -> str | None:
    """Why no layer of torch computes what this one computes; None where one does."""
    if not isinstance(layer, tuple(ours for ours, _ in KINDS)):
        cell = "Cell" if isinstance(layer, RecurrentCell) else ""
        return f"torch has RNN{cell}, GRU{cell} and LSTM{cell} only"
    if layer.initial_state != "zero":
        return f"its initial state is {layer.initial_state}, not zero"
    settings = layer.cell.settings()
    if isinstance(layer.cell, Regularised):
        return f"it has {' and '.join(layer.cell.options())}"
    plain = isinstance(layer, RNN | RNNCell)
    if plain:
        if layer.cell.name != "Elman":
            return "it has a leak"
        if settings["activation"] not in NONLINEARITIES:
            return f"its activation is {settings['activation']}, not {' or '.join(NONLINEARITIES)}"
        if "gain" in settings:
            return f"its gain is {settings['gain']}, not 1"
    if not plain and type(layer.cell) not in (GRUStep, LSTMStep, ProjectedLSTM):
        return f"its form is that of {layer.cell.name}"
    return None
