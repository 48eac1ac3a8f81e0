"""Layers unrolled over time."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from evenflow import RNN, create
from evenflow.probes.unrolled import unroll
from evenflow.systems import SYSTEMS

EQUAL = 1e-12  # float64, sums in another order


@pytest.mark.parametrize("name", SYSTEMS)
def test_states_are_the_layers_states(name):
    layer = create(name, 3, 6, dtype=torch.float64)
    x = torch.randn(9, 2, 3, dtype=torch.float64)
    (unrolled,) = unroll(layer, x)
    outputs = torch.stack([state[0][..., -6:] for state in unrolled.states[1:]])
    torch.testing.assert_close(outputs, layer(x)[0], rtol=1e-10, atol=1e-10)


def test_directions_have_the_order_of_the_final_states():
    layer = nn.LSTM(3, 4, 2, bidirectional=True, dtype=torch.float64)
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    _, (h_n, c_n) = layer(x)
    members = unroll(layer, x)
    torch.testing.assert_close(torch.stack([p.states[-1][0] for p in members]), h_n)
    torch.testing.assert_close(torch.stack([p.states[-1][1] for p in members]), c_n)


@pytest.mark.parametrize("every", [1, 4, 8, 20])
@pytest.mark.parametrize("name", ["rnn", "lstm", "gated-feedback"])
def test_checkpoints_change_nothing(name, every):
    both = name != "gated-feedback"
    options = {"num_layers": 2, "bidirectional": both, "dtype": torch.float64}
    layer = create(name, 3, 4, checkpoint_every=every, **options)
    plain = create(name, 3, 4, **options)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(9, 2, 3, dtype=torch.float64)
    found, expected = unroll(layer, x), unroll(plain, x)
    assert layer.checkpoint_every == every
    assert len(found) == len(expected) == (4 if both else 1)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.states, other.states, rtol=EQUAL, atol=EQUAL)


def test_the_layer_is_left_unchanged():
    layer = RNN(3, 4, 2, dropout=0.5)
    cell, before = layer.cell, torch.get_rng_state()
    unroll(layer, torch.ones(5, 2, 3))
    assert layer.cell is cell
    assert layer.engine == "auto"
    assert layer.training
    gru = nn.GRU(3, 4)
    before = torch.get_rng_state()
    unroll(gru, torch.ones(5, 2, 3))
    assert torch.equal(torch.get_rng_state(), before)
    assert not layer.observed


def test_refuses_packed_sequences():
    packed = pack_padded_sequence(torch.ones(4, 2, 3), torch.tensor([4, 2]))
    with pytest.raises(ValueError, match="x must be a tensor of sequences of one length, got packed ones"):
        unroll(nn.GRU(3, 4), packed)


def test_refuses_a_projected_lstm():
    with pytest.raises(ValueError, match="proj_size 2"):
        unroll(nn.LSTM(3, 4, proj_size=2), torch.ones(5, 2, 3))
