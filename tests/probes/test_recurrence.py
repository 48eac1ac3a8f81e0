"""The twin of torch's modules, and the steps of any layer laid open."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from evenflow import GRU, RNN, SequenceModel, attach, create
from evenflow.maps import Exponential
from evenflow.probes.recurrence import find_layer, find_layers, listen, open_twin, record
from evenflow.systems import SYSTEMS

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
def test_a_twin_gives_what_the_module_of_torch_gives(kind, form):
    layer = TORCH[kind](dtype=torch.float64, **FORMS[form])
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    output, state = layer(x)
    again, same = open_twin(layer)(x)
    torch.testing.assert_close(again, output, rtol=EQUAL, atol=EQUAL)
    torch.testing.assert_close(same, state, rtol=EQUAL, atol=EQUAL)


def test_a_twin_takes_packed_sequences():
    layer = nn.GRU(3, 5, bidirectional=True, dtype=torch.float64)
    packed = pack_padded_sequence(
        torch.randn(7, 3, 3, dtype=torch.float64), torch.tensor([2, 7, 4]), enforce_sorted=False
    )
    with listen(layer) as taps:
        inside, _ = layer(packed)
    outside, _ = layer(packed)
    torch.testing.assert_close(pad_packed_sequence(inside)[0], pad_packed_sequence(outside)[0], rtol=EQUAL, atol=EQUAL)
    assert [tuple(tap.shape) for tap in taps] == [(7, 3, 5)] * 2


def test_a_twin_reads_a_weight_through_its_map():
    layer = attach(nn.GRU(3, 6), "weight_hh_l0", Exponential(6), blocks="n")
    x = torch.randn(5, 2, 3)
    torch.testing.assert_close(open_twin(layer)(x)[0], layer(x)[0])


@pytest.mark.parametrize("name", SYSTEMS)
def test_recorded_states_are_the_layers_states(name):
    layer = create(name, 3, 6, dtype=torch.float64)
    x = torch.randn(9, 2, 3, dtype=torch.float64)
    (path,) = record(layer, x)
    outputs = torch.stack([state[0][..., -6:] for state in path.states[1:]])
    torch.testing.assert_close(outputs, layer(x)[0], rtol=1e-10, atol=1e-10)


def test_recurrences_stand_in_the_order_of_the_final_states():
    layer = nn.LSTM(3, 4, 2, bidirectional=True, dtype=torch.float64)
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    _, (h_n, c_n) = layer(x)
    paths = record(layer, x)
    torch.testing.assert_close(torch.stack([p.states[-1][0] for p in paths]), h_n)
    torch.testing.assert_close(torch.stack([p.states[-1][1] for p in paths]), c_n)


@pytest.mark.parametrize("every", [1, 4, 8, 20])
@pytest.mark.parametrize("name", ["rnn", "lstm", "gated-feedback"])
def test_checkpoints_change_nothing(name, every):
    both = name != "gated-feedback"
    options = {"num_layers": 2, "bidirectional": both, "dtype": torch.float64}
    layer = create(name, 3, 4, checkpoint_every=every, **options)
    plain = create(name, 3, 4, **options)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(9, 2, 3, dtype=torch.float64)
    found, expected = record(layer, x), record(plain, x)
    assert layer.checkpoint_every == every
    assert len(found) == len(expected) == (4 if both else 1)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.states, other.states, rtol=EQUAL, atol=EQUAL)


def test_recording_leaves_no_trace():
    layer = RNN(3, 4, 2, dropout=0.5)
    cell, before = layer.cell, torch.get_rng_state()
    record(layer, torch.ones(5, 2, 3))
    assert layer.cell is cell
    assert layer.engine == "auto"
    assert layer.training
    gru = nn.GRU(3, 4)
    before = torch.get_rng_state()
    record(gru, torch.ones(5, 2, 3))
    assert torch.equal(torch.get_rng_state(), before)
    assert "forward" not in vars(gru)


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


def test_refuses_packed_sequences():
    packed = pack_padded_sequence(torch.ones(4, 2, 3), torch.tensor([4, 2]))
    with pytest.raises(ValueError, match="x must be a tensor of sequences of one length, got packed ones"):
        record(nn.GRU(3, 4), packed)


def test_refuses_a_projected_lstm():
    with pytest.raises(ValueError, match="proj_size 2"):
        record(nn.LSTM(3, 4, proj_size=2), torch.ones(5, 2, 3))
