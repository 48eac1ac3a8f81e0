"""Recurrent layers inside a model, and torch's modules as evenflow layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from evenflow import GRU, SequenceModel, attach
from evenflow.maps import Exponential
from evenflow.probes.model_layer import as_evenflow_layer, find_layer, find_layers, tap_states

EQUAL = 1e-12  # float64, sums in another order
TORCH = {
    "rnn": lambda **o: nn.RNN(3, 5, **o),
    "rnn relu": lambda **o: nn.RNN(3, 5, nonlinearity="relu", **o),
    "gru": lambda **o: nn.GRU(3, 5, **o),
    "lstm": lambda **o: nn.LSTM(3, 5, **o),
}
FORMS = {
    "one layer": {},
    "stacked both ways": {"num_layers": 2, "bidirectional": True},
    "no bias": {"bias": False},
    "batch first": {"batch_first": True},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", TORCH)
def test_a_copy_has_the_outputs_of_the_torch_module(kind, form):
    layer = TORCH[kind](dtype=torch.float64, **FORMS[form])
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    output, state = layer(x)
    again, same = as_evenflow_layer(layer)(x)
    torch.testing.assert_close(again, output, rtol=EQUAL, atol=EQUAL)
    torch.testing.assert_close(same, state, rtol=EQUAL, atol=EQUAL)


def test_packed_sequences():
    layer = nn.GRU(3, 5, bidirectional=True, dtype=torch.float64)
    packed = pack_padded_sequence(
        torch.randn(7, 3, 3, dtype=torch.float64), torch.tensor([2, 7, 4]), enforce_sorted=False
    )
    with tap_states(layer) as taps:
        inside, _ = layer(packed)
    outside, _ = layer(packed)
    assert not layer._forward_hooks
    torch.testing.assert_close(pad_packed_sequence(inside)[0], pad_packed_sequence(outside)[0], rtol=EQUAL, atol=EQUAL)
    assert [tuple(tap.shape) for tap in taps] == [(7, 3, 5)] * 2


def test_a_mapped_weight_is_copied():
    layer = attach(nn.GRU(3, 6), "weight_hh_l0", Exponential(6), blocks="n")
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(as_evenflow_layer(layer)(x)[0], layer(x)[0])


def test_finds_the_one_layer():
    inside = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.GRU(3, 4)))
    assert find_layer(inside) is inside[1][0]
    assert list(find_layers(SequenceModel(GRU(2, 4), 1))) == ["layer"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 3), "got Linear with none"),
        (nn.Sequential(nn.GRU(2, 3), nn.GRU(3, 3)), "got Sequential with 2: 0, 1"),
    ],
    ids=["none", "two"],
)
def test_refuses_a_model_without_one_layer(model, message):
    with pytest.raises(ValueError) as refused:
        find_layer(model)
    assert str(refused.value).endswith(message)
