"""State dicts of `torch.nn.RNN`, `GRU` and `LSTM` under the names and in the shapes of the layers here, and back.

torch has two bias vectors for each layer and direction, ``bias_ih`` and ``bias_hh``, which only ever appear as a sum;
the layers here have one, ``bias``. The exception is the GRU's candidate, whose second bias stands inside the product
with the reset gate: it is ``bias_hh_n`` here. The GRU's recurrent matrix is kept in two, ``weight_hh`` for the gates
and ``weight_hh_n`` for the candidate, since a map makes the latter alone.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from evenflow.cells import GRUStep

if TYPE_CHECKING:
    from evenflow.layers.recurrent import Recurrent


def take_torch_weights(layer: Recurrent, state: MutableMapping[str, Tensor], prefix: str = "") -> None:
    """Replace, in a state dict that is about to be loaded, entries of torch's layer by those of `layer`.

    Nothing happens unless the entries below `prefix` are torch's: they then have ``bias_ih``, or without a bias the
    GRU's matrix of three blocks. A mapped matrix is assigned through its map, which refuses one that it cannot make.
    Names of cells (``weight_ih`` for ``weight_ih_l0``) are those of the first layer.
    """
    gru, H = type(layer.cell.core) is GRUStep, layer.hidden_size
    mapped = getattr(layer, "parametrizations", {})
    for suffix in layer.suffixes:
        cell = suffix == "_l0" and f"{prefix}weight_hh" in state and not layer.bidirectional
        ending = "" if cell else suffix
        hidden = state.get(f"{prefix}weight_hh{ending}")
        biased = f"{prefix}bias_ih{ending}" in state
        through_map = f"weight_hh{suffix}" in mapped
        if hidden is None or not (biased or cell or through_map or (gru and hidden.shape[0] == 3 * H)):
            continue
        values = {"weight_ih": state.pop(f"{prefix}weight_ih{ending}")}
        del state[f"{prefix}weight_hh{ending}"]
        if f"{prefix}weight_hr{ending}" in state:
            values["weight_hr"] = state.pop(f"{prefix}weight_hr{ending}")
        values["weight_hh"] = hidden[: 2 * H] if gru else hidden
        if gru:
            values["weight_hh_n"] = hidden[2 * H :]
        if biased:
            first, second = state.pop(f"{prefix}bias_ih{ending}"), state.pop(f"{prefix}bias_hh{ending}")
            if gru:
                values["bias_hh_n"] = second[2 * H :]
                second = torch.cat([second[: 2 * H], torch.zeros_like(second[2 * H :])])
            values["bias"] = first + second
        for name, value in values.items():
            if name + suffix not in mapped:
                state[prefix + name + suffix] = value
                continue
            with torch.no_grad():
                setattr(layer, name + suffix, value)
            inner = f"parametrizations.{name}{suffix}."
            state.update((prefix + key, t) for key, t in layer.state_dict().items() if key.startswith(inner))


def torch_state(layer: Recurrent) -> dict[str, Tensor]:
    """The state dict of the layer of torch with the same equation."""
    state: dict[str, Tensor] = {}
    gru = isinstance(layer.cell, GRUStep)
    with torch.no_grad():
        for index, suffix in enumerate(layer.suffixes):
            weights = layer.direction_weights(index)
            hidden = weights["weight_hh"]
            state[f"weight_ih{suffix}"] = weights["weight_ih"]
            state[f"weight_hh{suffix}"] = torch.cat([hidden, weights["weight_hh_n"]]) if gru else hidden
            if layer.biased:
                second = torch.zeros_like(weights["bias"])
                if gru:
                    second[2 * layer.hidden_size :] = weights["bias_hh_n"]
                state[f"bias_ih{suffix}"], state[f"bias_hh{suffix}"] = weights["bias"], second
            if "weight_hr" in weights:
                state[f"weight_hr{suffix}"] = weights["weight_hr"]
    return state
