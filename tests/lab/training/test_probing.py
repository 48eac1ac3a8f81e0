from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenflow import RNN, SequenceModel, create, fit
from evenflow.bounds import gradient_band
from evenflow.lab.tasks import make
from evenflow.lab.tasks.task import Batch
from evenflow.lab.training import Run
from evenflow.lab.training.probing import STATISTICS, Probing
from evenflow.probes import gradient_flow, jacobian_norms, spectrum, temporal_components

LENGTH, UNITS = 12, 8
ADDING = make("adding", length=LENGTH)
QUICK: dict[str, Any] = {"steps": 6, "batch_size": 4, "validate_every": 3, "log_every": 3, "device": "cpu"}
SAME = 1e-5  # float32 rounding of one number
ESTIMATE = 0.25  # of a Frobenius norm from 32 random vectors: 2 in 32 is the variance of its square at worst
BAND = 1e-4  # how far float32 steps may leave the band of their float64 matrix


def looked_at(layer: torch.nn.Module, batch: Batch | None = None) -> dict[str, np.ndarray]:
    model = SequenceModel(layer, 1)
    probing = Probing(seed=0)
    batch = ADDING.batch(40, torch.Generator().manual_seed(0)) if batch is None else batch
    probing.look(3, model, batch, ADDING.loss)
    arrays = probing.arrays()
    assert arrays is not None
    return arrays


@pytest.mark.parametrize(
    ("name", "options", "layers", "matrices", "band"),
    [
        pytest.param("urnn", {}, 1, 1, True, id="urnn"),
        pytest.param("sgornn", {"num_layers": 2}, 2, 2, True, id="two layers of sgornn"),
        pytest.param("rnn", {"bidirectional": True}, 2, 2, True, id="rnn, both directions"),
        pytest.param("lstm", {}, 1, 4, False, id="lstm, four gates"),
        pytest.param("gru", {}, 1, 3, False, id="gru, three gates"),
        pytest.param("scrn", {}, 1, 1, False, id="scrn, a smaller matrix"),
        pytest.param("arjovsky-urnn", {}, 1, 1, True, id="complex units"),
        pytest.param("gated-feedback", {}, 3, 9, False, id="gated feedback"),
    ],
)
def test_what_is_recorded(name: str, options: dict[str, Any], layers: int, matrices: int, band: bool) -> None:
    layer = create(name, 2, UNITS, **options)
    found = looked_at(layer)
    assert found["step"].tolist() == [3]
    assert found["gradient_norm"].shape == found["jacobian_norm"].shape == (1, LENGTH)
    assert ("layer_norm" in found) == (layers > 1)
    if layers > 1:
        assert found["layer_norm"].shape == (1, layers, LENGTH)
    assert found["matrix"].tolist() == [s.name for s in spectrum(layer)]
    assert found["singular_values"].shape == (1, matrices, len(STATISTICS))
    assert ("band" in found) == band
    assert all(np.isfinite(array).all() for key, array in found.items() if key != "matrix")


def test_the_numbers_are_those_of_the_probes() -> None:
    layer = RNN(2, UNITS, num_layers=2, activation="tanh")
    batch = ADDING.batch(40, torch.Generator().manual_seed(0))
    model = SequenceModel(layer, 1)
    probing = Probing(seed=0)
    probing.look(0, model, batch, ADDING.loss)
    found = probing.arrays()
    assert found is not None
    np.testing.assert_array_equal(found["gradient_norm"][0], gradient_flow(model, *batch[:2], ADDING.loss))
    all_layers = gradient_flow(model, *batch[:2], ADDING.loss, layers="all")
    np.testing.assert_allclose(found["layer_norm"][0], all_layers, rtol=SAME)
    for row, expected in zip(found["singular_values"][0], spectrum(model), strict=True):
        assert row.tolist() == [expected.mean, expected.std, expected.min, expected.max]
    limits = gradient_band(model, 1)
    assert found["band"][0].tolist() == [limits.lower_rate, limits.upper_rate]


def test_the_jacobian_is_estimated_at_every_lag() -> None:
    layer = RNN(2, UNITS, activation="tanh", map="exponential")
    batch = ADDING.batch(40, torch.Generator().manual_seed(0))
    found = looked_at(layer, batch)["jacobian_norm"][0]
    assert found[0] == pytest.approx(math.sqrt(UNITS), rel=SAME)
    for lag in (1, 5, LENGTH - 1):
        exact = jacobian_norms(layer, batch.inputs[:, :32], LENGTH - 1, [LENGTH - 1 - lag]).frobenius
        assert found[lag] == pytest.approx(float(np.sqrt(np.square(exact).mean())), rel=ESTIMATE)


@pytest.mark.parametrize("name", ["urnn", "rnn", "sgornn", "spectral", "factorized", "arjovsky-urnn"])
def test_the_jacobian_stays_within_its_band(name: str) -> None:
    found = looked_at(create(name, 2, UNITS))
    lag = np.arange(LENGTH)
    lower, upper = (math.sqrt(UNITS) * rate**lag for rate in found["band"][0])
    assert (found["jacobian_norm"][0] >= lower * (1 - BAND)).all()
    assert (found["jacobian_norm"][0] <= upper * (1 + BAND)).all()


def test_an_orthogonal_matrix_with_abs_is_exact_at_every_lag() -> None:
    found = looked_at(RNN(2, UNITS, map="exponential", activation="abs"))
    np.testing.assert_allclose(found["jacobian_norm"], math.sqrt(UNITS), rtol=BAND)
    np.testing.assert_allclose(found["band"], 1.0, rtol=BAND)


def test_sequences_of_different_lengths_are_counted_from_their_own_ends() -> None:
    layer = RNN(2, UNITS, map="exponential", activation="abs")
    batch = ADDING.batch(6, torch.Generator().manual_seed(0))
    found = looked_at(layer, batch._replace(lengths=torch.tensor([3, 7, 1, 7, 5, 7])))["jacobian_norm"][0]
    np.testing.assert_allclose(found[:7], math.sqrt(UNITS), rtol=BAND)
    assert np.isnan(found[7:]).all()


def test_weights_that_are_not_finite_are_passed_over() -> None:
    model = SequenceModel(create("rnn", 2, UNITS), 1)
    with torch.no_grad():
        model.output.weight[0, 0] = math.nan
    probing = Probing(seed=0)
    probing.look(0, model, ADDING.batch(4, torch.Generator().manual_seed(0)), ADDING.loss)
    assert probing.arrays() is None


def test_rows_go_into_the_folder_and_come_back(tmp_path: Path) -> None:
    model = SequenceModel(create("sgornn", 2, UNITS, num_layers=2), 1)
    result = fit(model, ADDING, folder=tmp_path / "run", probe_every=2, **QUICK)
    stored = Run(tmp_path / "run").probes
    assert stored is not None
    assert result.probes is not None
    assert stored.keys() == result.probes.keys()
    for name, array in stored.items():
        np.testing.assert_array_equal(array, result.probes[name])
        assert array.dtype == result.probes[name].dtype
    back = Probing(seed=0)
    back.restore(stored, until=4)
    again = back.arrays()
    assert again is not None
    assert again["step"].tolist() == [0, 2, 4]
    np.testing.assert_array_equal(again["jacobian_norm"], stored["jacobian_norm"][:3])
    assert again["matrix"].tolist() == stored["matrix"].tolist()


def test_probes_of_gradients_alone_can_be_gone_on_with() -> None:
    model = SequenceModel(create("urnn", 2, UNITS), 1)
    probing = Probing(seed=0)
    probing.restore({"step": np.array([0]), "gradient_norm": np.ones((1, LENGTH))}, until=0)
    probing.look(1, model, ADDING.batch(4, torch.Generator().manual_seed(0)), ADDING.loss)
    found = probing.arrays()
    assert found is not None
    assert found["step"].tolist() == [0, 1]
    assert found["gradient_norm"].shape == (2, LENGTH)
    assert "band" not in found


@pytest.mark.parametrize("name", ["rnn", "sgornn", "gru"])
def test_temporal_components_before_the_first_update(name: str, tmp_path: Path) -> None:
    model = SequenceModel(create(name, 2, UNITS), 1)
    batch = ADDING.batch(40, torch.Generator().manual_seed(0))
    expected = temporal_components(model, batch.inputs, batch.targets, ADDING.loss).norms
    probing = Probing(seed=0)
    probing.look(0, model, batch, ADDING.loss)
    with torch.no_grad():
        model.output.weight.mul_(7)
    probing.look(2, model, batch, ADDING.loss)
    arrays = probing.arrays()
    assert arrays is not None
    np.testing.assert_allclose(arrays["component_norm"], expected.detach(), rtol=SAME)
    again = Probing(seed=0)
    again.restore(arrays, 0)
    found = again.arrays()
    assert found is not None
    np.testing.assert_array_equal(found["component_norm"], arrays["component_norm"])
    assert found["step"].tolist() == [0]


def test_a_layer_without_temporal_components_goes_without() -> None:
    probing = Probing(seed=0)
    probing.look(0, SequenceModel(create("lstm", 2, UNITS), 1), ADDING.batch(4, torch.Generator()), ADDING.loss)
    arrays = probing.arrays()
    assert arrays is not None
    assert "component_norm" not in arrays
