"""The forecasts that a finished run keeps, beside `Predictor.forecast` and sums over their origins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import evenflow
from evenflow import SequenceModel
from evenflow.lab.tasks import Batch
from evenflow.lab.training import Run, train
from evenflow.lab.training.forecast_log import ForecastLog
from evenflow.models import DataColumn, DataSchema

TRAINING = {"steps": 30, "batch_size": 4, "lr": 0.02, "validate_every": 10, "device": "cpu"}
PERIOD = 5


def wave(steps: int, seed: int = 0) -> np.ndarray:
    draw = np.random.RandomState(seed)
    turn = np.arange(steps) * 2 * np.pi / PERIOD
    return np.stack([1000 + 300 * np.sin(turn) + draw.randn(steps), np.cos(turn) + 0.01 * draw.randn(steps)], 1)


def test_forecasts_and_errors_are_those_of_the_bundle(tmp_path: Path) -> None:
    sequences = [wave(60, seed).astype(np.float32) for seed in range(12)]
    # The median is 29 steps, the horizon 7; the sequence of 8 steps has no forecast.
    validation = [wave(steps, 50 + steps).round(4) for steps in (29, 90, 29, 29, 8, 29)]
    for name, many in (("train", sequences), ("valid", validation)):
        rows = [f"s{n},{t},{a},{b}" for n, x in enumerate(many) for t, (a, b) in enumerate(x.tolist())]
        (tmp_path / f"{name}.csv").write_text("\n".join(["sequence,time,level,flow", *rows, ""]))
    task = {"name": f"csv:{tmp_path / 'train.csv'}", "kind": "next", "validation": str(tmp_path / "valid.csv")}
    config = {"task": task, "system": {"name": "gru", "hidden_size": 6}, "training": TRAINING}
    train(config, tmp_path / "run", progress=False)
    answers, predictor = Run(tmp_path / "run").answers, evenflow.load(tmp_path / "run")
    assert answers is not None
    horizon = 29 // 4
    assert int(answers["forecast_horizon"]) == horizon
    assert int(answers["forecast_season"]) == PERIOD
    errors, change, count = np.zeros((3, horizon, 2)), np.zeros(2), 0
    origins = 0
    for n, x in enumerate(validation):
        starts = [start for start in range(horizon, len(x), horizon) if start + horizon <= len(x)][-8:]
        for k, start in enumerate(starts):
            found = predictor.forecast(x[None, :start], horizon)[0]
            errors[0] += abs(x[start : start + horizon] - found)
            errors[1] += abs(x[start : start + horizon] - x[start - 1])
            for step in range(horizon):
                errors[2, step] += abs(x[start + step] - x[start - PERIOD + step % PERIOD])
            if n == 1:
                np.testing.assert_allclose(answers["forecast_predicted"][k], found, rtol=1e-3, atol=1e-4)
        if n == 1:
            assert answers["forecast_starts"].tolist() == starts
            assert int(answers["forecast_first"]) == starts[0] - horizon
            np.testing.assert_allclose(
                answers["forecast_true"], x[starts[0] - horizon : starts[-1] + horizon], rtol=1e-4, atol=1e-5
            )
        origins += len(starts)
        if starts:
            change += abs(x[PERIOD:] - x[:-PERIOD]).sum(0)
            count += len(x) - PERIOD
    assert (int(answers["forecast_origins"]), int(answers["forecast_sequence"])) == (origins, 1)
    assert int(answers["forecast_sequences"]) == 5
    np.testing.assert_allclose(answers["forecast_errors"], errors.transpose(2, 1, 0) / origins, rtol=1e-3)
    np.testing.assert_allclose(answers["forecast_scale"], change / count, rtol=1e-3)


def numbers(*kinds: str) -> tuple[DataColumn, ...]:
    return tuple(
        DataColumn(f"x{n}", kind, categories=("a", "b") * (kind == "category")) for n, kind in enumerate(kinds)
    )


@pytest.mark.parametrize(
    ("schema", "steps", "kept"),
    [
        pytest.param(DataSchema("next", "every", numbers("number")), 4, True, id="shortest"),
        pytest.param(DataSchema("next", "every", numbers("number")), 3, False, id="too short"),
        pytest.param(DataSchema("next", "every", numbers("number", "category")), 20, False, id="a category"),
        pytest.param(
            DataSchema("next", "every", (DataColumn("x", missing="mean", mask=True),)), 20, False, id="a mask"
        ),
        pytest.param(DataSchema("next", "every", numbers(*["number"] * 5)), 20, True, id="five columns"),
        pytest.param(DataSchema("regression", "every", numbers("number"), (DataColumn("y"),)), 20, False, id="targets"),
    ],
)
def test_what_is_forecast(schema: DataSchema, steps: int, kept: bool) -> None:
    log = ForecastLog(schema)
    outputs = schema.outputs
    for _ in range(3):
        log.add(Batch(torch.randn(steps - 1, 45, schema.width), torch.randn(steps - 1, 45, outputs)))
    model = SequenceModel(evenflow.create("rnn", schema.width, 4), outputs, readout="every")
    answers = log.arrays(model)
    assert bool(answers) == kept
    if kept:
        assert int(answers["forecast_sequences"]) == 100
        assert answers["forecast_errors"].shape == (min(outputs, 3), steps // 4, 3)
    both = evenflow.create("rnn", schema.width, 4, bidirectional=True)
    assert log.arrays(SequenceModel(both, outputs, readout="every")) == {}
