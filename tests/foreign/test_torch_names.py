"""Attributes and methods that scripts written for torch's recurrent layers use."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import evenflow
from evenflow.systems import SYSTEMS

# Systems whose equation torch has; the map of a matrix does not matter.
CONVERTED = ("rnn", "irnn", "factorized", "spectral", "ornn", "vprnn", "gru", "ugru", "lstm")
TRAINED = [name for name in SYSTEMS if name != "esn"]


@pytest.mark.parametrize("name", TRAINED)
def test_reset_parameters_draws_what_a_new_layer_draws(name):
    layer = evenflow.create(name, 3, 8, 2, generator=torch.Generator().manual_seed(0))
    parameters = dict(layer.named_parameters())
    layer.reset_parameters(torch.Generator().manual_seed(1))
    fresh = evenflow.create(name, 3, 8, 2, generator=torch.Generator().manual_seed(1))
    assert all(layer.get_parameter(key) is parameter for key, parameter in parameters.items())
    for key, value in fresh.state_dict().items():
        assert torch.equal(layer.state_dict()[key], value), key


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_names_of_torchs_layers(kind):
    theirs, ours = (getattr(module, kind)(3, 8, 2, bidirectional=True) for module in (nn, evenflow))
    ours.flatten_parameters()
    assert len(ours.all_weights) == len(theirs.all_weights) == 4
    assert ours.mode == theirs.mode
    for name in (
        "input_size",
        "hidden_size",
        "num_layers",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
        "proj_size",
    ):
        assert getattr(ours, name) == getattr(theirs, name)


def test_a_mapped_matrix_takes_torchs_weights_through_its_map():
    orthogonal = torch.linalg.qr(torch.randn(8, 8)).Q
    theirs = nn.RNN(3, 8, nonlinearity="relu")
    with torch.no_grad():
        theirs.weight_hh_l0.copy_(orthogonal)
    ours = evenflow.create("ornn", 3, 8)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(9, 2, 3)
    assert torch.allclose(ours(x)[0], theirs(x)[0], atol=1e-5)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: evenflow.create("sgornn", 2, 4), "this ScalarGatedRNN: torch has RNN, GRU and LSTM only"),
        (lambda: evenflow.create("urnn", 2, 4), "this RNN: its activation is abs, not tanh or relu"),
        (lambda: evenflow.RNN(2, 4, gain=1.05), "this RNN: its gain is 1.05, not 1"),
        (lambda: evenflow.RNN(2, 4, leak=0.5), "this RNN: it has a leak"),
        (lambda: evenflow.GRU(2, 4, initial_state="learned"), "this GRU: its initial state is learned, not zero"),
        (lambda: evenflow.LSTM(2, 4, form="peephole"), "this LSTM: its form is that of PeepholeLSTM"),
    ],
)
def test_layers_that_torch_does_not_have(make, reason):
    with pytest.raises(ValueError) as error:
        evenflow.to_torch(make())
    assert str(error.value) == f"torch has no layer with the equation of {reason}"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("RNNCell", {}), ("RNNCell", {"nonlinearity": "relu"}), ("GRUCell", {}), ("LSTMCell", {})],
)
def test_cells_are_converted_both_ways(kind, options, bias):
    theirs = getattr(nn, kind)(3, 8, bias, dtype=torch.float64, **options).eval()
    ours = evenflow.from_torch(theirs)
    again = evenflow.to_torch(ours)
    assert (type(ours), type(again)) == (getattr(evenflow, kind), type(theirs))
    assert not ours.training
    assert not again.training
    assert repr(again) == repr(theirs)
    x = torch.randn(5, 3, dtype=torch.float64)
    for cell in (ours, again):
        state = theirs(x, theirs(x))
        torch.testing.assert_close(cell(x, cell(x)), state, rtol=0, atol=1e-12)


def test_the_map_of_a_cell_is_computed_once():
    ours = evenflow.RNNCell(3, 8, map="exponential")
    theirs = evenflow.to_torch(ours)
    assert torch.equal(theirs.weight_hh, ours.weight_hh)
    assert theirs.weight_hh.is_leaf


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: evenflow.RNNCell(2, 4, activation="abs"), "this RNNCell: its activation is abs, not tanh or relu"),
        (lambda: evenflow.LSTMCell(2, 4, form="1997"), "this LSTMCell: its form is that of LSTM1997"),
        (lambda: evenflow.GRUCell(2, 4, zoneout=0.1), "this GRUCell: it has zoneout"),
        (
            lambda: evenflow.RecurrentCell(evenflow.create("scrn", 2, 4).cell, 2, 4),
            "this RecurrentCell: torch has RNNCell, GRUCell and LSTMCell only",
        ),
    ],
)
def test_cells_that_torch_does_not_have(make, reason):
    with pytest.raises(ValueError) as error:
        evenflow.to_torch(make())
    assert str(error.value) == f"torch has no cell with the equation of {reason}"


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_converted_or_the_reason_given(name):
    layer, x = evenflow.create(name, 3, 8, dtype=torch.float64), torch.randn(6, 2, 3, dtype=torch.float64)
    if name not in CONVERTED:
        with pytest.raises(ValueError, match=r"^torch has no layer with the equation of this "):
            evenflow.to_torch(layer)
        return
    theirs = evenflow.to_torch(layer)
    for converted in (theirs, evenflow.from_torch(theirs)):
        torch.testing.assert_close(converted(x), layer(x), rtol=0, atol=1e-10)


def test_what_is_no_recurrent_layer_of_torch():
    with pytest.raises(ValueError) as error:
        evenflow.from_torch(nn.Linear(2, 3))
    assert str(error.value) == "module must be a torch.nn.RNN, GRU or LSTM, or a cell of them, got Linear"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"nonlinearity": "sigmoid"}, "nonlinearity must be one of tanh, relu, got 'sigmoid'"),
        (
            {"nonlinearity": "relu", "activation": "abs"},
            "nonlinearity must be left out beside activation, got 'relu' and 'abs'",
        ),
    ],
)
def test_wrong_nonlinearities(options, sentence):
    with pytest.raises(ValueError) as error:
        evenflow.RNN(2, 3, **options)
    assert str(error.value) == sentence


def test_positional_arguments_of_create():
    layer = evenflow.create("ugru", 3, 8, 2, False, True, 0.1, True)
    assert (layer.num_layers, layer.bias, layer.batch_first, layer.dropout) == (2, False, True, 0.1)
    assert layer.bidirectional
    with pytest.raises(ValueError) as error:
        evenflow.create("gru", 3, 8, 2, False, True, 0.1, True, 0)
    assert str(error.value) == (
        "create takes at most num_layers, bias, batch_first, dropout, bidirectional by position, got 6 more arguments"
    )
