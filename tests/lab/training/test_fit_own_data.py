"""`fit` on arrays and loaders, from the first update to predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from evenflow import SequenceModel, create, load
from evenflow.lab.training import Run, checkpoint, fit

X = (np.random.default_rng(0).normal(size=(40, 5, 2)) * 50 + 300).astype(np.float32)
WORDS = np.where(X[:, -1, 0] > 300, "up", "down")
QUICK = {"steps": 12, "validate_every": 4, "log_every": 3, "device": "cpu", "progress": False}


def model_for(outputs=2):
    generator = torch.Generator().manual_seed(0)
    return SequenceModel(create("gru", 2, 8, generator=generator), outputs, generator=generator)


def test_predictions_are_labels_and_numbers_in_the_users_units(tmp_path):
    result = fit(model_for(), (X, WORDS), lr=0.03, **(QUICK | {"steps": 60}), folder=tmp_path / "run")
    assert result.best_metric >= 0.75
    predicted = result.predictor().predict(X)
    assert (predicted == WORDS).mean() > 0.9
    np.testing.assert_array_equal(load(tmp_path / "run").predict(X), predicted)
    y = X[:, -1].sum(1)
    result = fit(model_for(1), (X, y), lr=0.03, **(QUICK | {"steps": 150}))
    error = np.abs(result.predictor().predict(X).squeeze() - y)
    assert error.mean() < 0.5 * y.std()


class Stop(Exception):
    pass


def test_a_run_on_arrays_resumes_to_the_same_bits(tmp_path):
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) == stop_at:
            raise Stop
        return torch.nn.functional.cross_entropy(outputs, targets)

    stop_at = 0
    alone, model = model_for(), model_for()
    fit(alone, (X, WORDS), loss=loss, batch_size=8, **QUICK)
    calls.clear()
    stop_at = 10
    options = QUICK | {"batch_size": 8, "checkpoint_every": 5, "folder": tmp_path / "run", "loss": loss}
    with pytest.raises(Stop):
        fit(model, (X, WORDS), **options)
    assert checkpoint.find(tmp_path / "run" / "checkpoint") == "step-000000005"
    with pytest.raises(ValueError, match=r"^the data differs from that of run .*: give the same arrays"):
        fit(model_for(), (X, WORDS[::-1]), **options, resume=True)
    with pytest.raises(ValueError, match=r"^task must stay as the run"):
        fit(model_for(), (X, WORDS), **(options | {"loss": "cross_entropy"}), resume=True)
    stop_at = 0
    model = model_for()
    fit(model, (X, WORDS), **options, resume=True)
    assert Run(tmp_path / "run").status["state"] == "finished"
    for a, b in zip(alone.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_loader(tmp_path):
    data = TensorDataset(torch.tensor((X - 300) / 50), torch.tensor((WORDS == "up").astype(int)))
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    options = {name: value for name, value in QUICK.items() if name != "steps"}
    result = fit(model_for(), loader, validation=loader, epochs=10, lr=0.03, folder=tmp_path / "run", **options)
    assert result.steps == 50
    assert result.best_metric > 0.8
    assert Run(tmp_path / "run").config["task"] == {"name": "loader"}
    with pytest.raises(ValueError, match=r"^resume needs data that come in the same order again, got a DataLoader"):
        fit(model_for(), loader, validation=loader, folder=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match=r"^batch_size is that of the DataLoader, got 3 besides$"):
        fit(model_for(), loader, validation=loader, batch_size=3)
