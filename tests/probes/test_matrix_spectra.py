"""Spectra of matrices whose spectra are known, in every layer there is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from evenflow import GRU, RNN, SequenceModel, attach, create
from evenflow.maps import Exponential
from evenflow.probes import spectrum
from evenflow.systems import SYSTEMS

ORTHOGONAL = 1e-5  # float32 maps


def test_a_matrix_with_a_known_spectrum():
    layer = RNN(2, 3, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, -0.5]]))
    (found,) = spectrum(layer)
    assert found.name == "weight_hh_l0"
    np.testing.assert_allclose(found.singular_values, [2, 0.5, 0])
    np.testing.assert_allclose(found.eigenvalues, [0.5, 0, 0], atol=1e-12)  # not normal: the radius is far below 2
    assert (found.min, found.max, found.radius) == (0, 2, 0.5)
    assert found.mean == pytest.approx(2.5 / 3)
    assert found.std == pytest.approx(np.std([2, 0.5, 0]))
    assert found.deviation == pytest.approx(3)


@pytest.mark.parametrize("name", ["urnn", "scornn", "ornn", "vprnn", "full-urnn", "arjovsky-urnn", "sgornn"])
def test_orthogonal_and_unitary_systems(name):
    (found,) = spectrum(create(name, 2, 8))
    assert found.deviation < ORTHOGONAL
    assert found.min == pytest.approx(1, abs=ORTHOGONAL)
    assert found.radius == pytest.approx(1, abs=ORTHOGONAL)


def test_a_margin_is_kept():
    layer = RNN(2, 8, map="svd", margin=0.1)
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(torch.randn_like(p))
    (found,) = spectrum(layer)
    assert found.min >= 0.9 - ORTHOGONAL
    assert found.max <= 1.1 + ORTHOGONAL
    assert found.std > 0.001


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (nn.RNN(2, 4, 2), ["weight_hh_l0", "weight_hh_l1"]),
        (nn.GRU(2, 4, bidirectional=True), [f"weight_hh_l0{d}[{g}]" for d in ("", "_reverse") for g in "rzn"]),
        (nn.LSTM(2, 4), [f"weight_hh_l0[{g}]" for g in "ifgo"]),
        (nn.LSTM(2, 4, proj_size=3), [f"weight_hh_l0[{g}]" for g in "ifgo"]),
        (GRU(2, 4), ["weight_hh_l0[r]", "weight_hh_l0[z]", "weight_hh_n_l0"]),
        (create("lstm-1997", 2, 4), [f"weight_hh_l0[{g}]" for g in "igo"]),
        (create("gated-feedback", 2, 4, num_layers=2), [f"weight_hh_l{j}[{i}]" for j in range(2) for i in range(2)]),
        (SequenceModel(RNN(2, 4), 1), ["layer.weight_hh_l0"]),
        (nn.ModuleList([nn.RNN(2, 4), RNN(2, 4)]), ["0.weight_hh_l0", "1.weight_hh_l0"]),
    ],
    ids=["rnn", "gru", "lstm", "projected", "ours", "1997", "feedback", "model", "several"],
)
def test_every_gate_has_its_own(model, names):
    assert [found.name for found in spectrum(model)] == names


def test_blocks_are_the_gates():
    module = attach(nn.GRU(2, 4), "weight_hh_l0", Exponential(4), blocks="n")
    r, _, n = spectrum(module)
    assert n.deviation < ORTHOGONAL < r.deviation
    expected = torch.linalg.svdvals(module.weight_hh_l0[:4].detach().double())
    np.testing.assert_allclose(r.singular_values, expected.numpy())


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_one(name):
    for found in spectrum(create(name, 2, 8)):
        assert len(found.singular_values) > 0
        assert found.radius <= found.max * (1 + ORTHOGONAL)
        assert found.name in str(found)


def test_eigenvalues_of_large_matrices_can_be_left_out():
    small, large = (spectrum(nn.RNN(2, n), eigenvalues_up_to=4)[0] for n in (4, 5))
    assert len(small.eigenvalues) == 4
    assert len(large.eigenvalues) == 0
    assert np.isnan(large.radius)
    assert "radius" in str(small)
    assert "radius" not in str(large)


def test_refuses():
    with pytest.raises(ValueError, match="model must hold a recurrent layer, of evenflow or torch's, got Linear"):
        spectrum(nn.Linear(2, 2))
    layer = RNN(2, 4)
    with torch.no_grad():
        layer.weight_hh_l0[0, 0] = torch.nan
    with pytest.raises(ValueError, match="weight_hh_l0 must be finite"):
        spectrum(layer)
