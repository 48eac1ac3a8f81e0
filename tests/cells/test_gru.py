"""GRU: which matrix the map makes. That it is torch's GRU is in test_layers."""

from __future__ import annotations

import pytest
import torch

from evenflow import GRU
from evenflow.maps import residual


def test_the_map_makes_the_candidate_alone():
    layer = GRU(3, 8, map="exponential")
    assert residual(layer.weight_hh_n_l0) < 1e-5
    assert layer.weight_hh_l0.shape == (16, 8)
    for _ in range(20):
        layer.zero_grad()
        layer(torch.randn(5, 4, 3))[0].square().sum().backward()
        torch.optim.SGD(layer.parameters(), 0.05).step()
    assert residual(layer.weight_hh_n_l0) < 1e-5
    for gate in layer.weight_hh_l0.split(8):
        assert residual(gate) > 1e-3, "the gates are free to leave"


def test_every_recurrent_weight_says_so_in_its_name():
    """Clipping finds the recurrent matrices by their name."""
    recurrent = [name for name, p in GRU(3, 8, map="exponential").named_parameters() if "weight_hh" in name]
    assert recurrent == ["weight_hh_l0", "parametrizations.weight_hh_n_l0.original"]


def test_no_bias():
    layer = GRU(3, 8, bias=False)
    assert not [name for name, _ in layer.named_parameters() if "bias" in name]
    assert layer(torch.zeros(4, 2, 3))[0].abs().max() == 0


@pytest.mark.parametrize("map", ["free", "exponential"])
def test_the_free_maps_options_are_the_gates_too(map):
    options = {"init": "identity"}
    layer = GRU(3, 4, map=map, **options)
    assert torch.equal(layer.weight_hh_n_l0, torch.eye(4))
    assert torch.equal(layer.weight_hh_l0[:4], torch.eye(4)) == (map == "free")


def test_an_open_update_gate_keeps_the_state():
    layer = GRU(3, 8)
    with torch.no_grad():
        layer.bias_l0[8:16] = 100.0
    h0 = torch.randn(1, 2, 8)
    assert torch.equal(layer(torch.randn(50, 2, 3), h0)[1], h0)
