"""Forecasts: several steps at once, and inputs that are known ahead, beside a loop over single steps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import evenflow
from evenflow import SequenceModel, create
from evenflow.models import DataColumn, DataSchema, Predictor

LOAD = DataColumn("load", mean=50.0, deviation=10.0)
RAIN = DataColumn("rain", mean=2.0, deviation=4.0, known=True)
DAY = DataColumn("day", "category", categories=("sunday", "weekday"), known=True)
COLUMNS = (RAIN, LOAD, DAY)
HORIZON = 4
CLOSE = 1e-5  # float32


def predictor_of(horizon: int = 1, columns=COLUMNS, **options) -> Predictor:
    schema = DataSchema("next", "every", columns, horizon=horizon, **options)
    torch.manual_seed(0)
    return Predictor(SequenceModel(create("gru", schema.width, 8), schema.outputs, readout="every"), schema)


@pytest.fixture
def series():
    """Five series of 12 steps: rain, load, and the position of the day."""
    draw = np.random.default_rng(0)
    return np.stack(
        [2 + 4 * draw.normal(size=(5, 12)), 50 + 10 * draw.normal(size=(5, 12)), draw.integers(0, 2, (5, 12))], 2
    )


def by_hand(series: np.ndarray, step: int, load: float, horizon: int = 1) -> list[float]:
    """What the model reads at a step of one series: its load, and rain and day of the next steps; zeros beyond."""
    ahead = [series[step + n] if step + n < len(series) else None for n in range(1, horizon + 1)]
    rain = [0.0 if row is None else (row[0] - 2) / 4 for row in ahead]
    days = [0.0 if row is None else float(row[2] == day) for row in ahead for day in (0, 1)]
    return [*rain, (load - 50) / 10, *days]


@pytest.mark.parametrize("horizon", [1, 3, 20])
def test_the_model_reads_what_is_known_of_the_next_steps(horizon, series):
    schema = predictor_of(horizon).schema
    scaled = schema.scale_inputs(torch.from_numpy(series))
    for row, found in zip(series, scaled.tolist(), strict=True):
        np.testing.assert_allclose(found, [by_hand(row, step, row[step, 1], horizon) for step in range(len(row))])
    assert len(schema.read_names) == schema.width == 3 * horizon + 1
    assert schema.read_names[: horizon + 1] == [*(f"rain (+{n})" for n in range(1, horizon + 1)), "load"]
    assert DataSchema.from_dict(schema.to_dict()) == schema


@torch.no_grad()
def loop(made: Predictor, series: np.ndarray, told: int, horizon: int) -> list[float]:
    """The recursive forecast, step by step with nothing but the model: each prediction is the next step's load."""
    load, found = series[:told, 1].tolist(), []
    for _ in range(horizon):
        steps = [by_hand(series, step, value) for step, value in enumerate(load)]
        y = made.model(torch.tensor(steps, dtype=torch.float32).unsqueeze(1))[0][-1, 0, 0]
        found.append(float(y) * 10 + 50)
        load.append(found[-1])
    return found


def test_a_recursive_forecast_reads_what_is_known(series):
    made, told = predictor_of(), 8
    expected = [loop(made, each, told, HORIZON) for each in series]
    known = series[:, told:, [0, 2]]
    found = made.forecast(series[:, :told], HORIZON, known)
    np.testing.assert_allclose(found[..., 0], expected, rtol=CLOSE)
    shifted = known.copy()
    shifted[..., 0] += 5
    assert abs(made.forecast(series[:, :told], HORIZON, shifted) - found).max() > 1e-3


def test_ragged_series_are_forecast_each_by_itself(series):
    for horizon in (1, HORIZON):
        made = predictor_of(horizon)
        told = [3, 8, 5, 8, 2]
        known = [each[n : n + HORIZON, [0, 2]] for each, n in zip(series, told, strict=True)]
        found = made.forecast([each[:n] for each, n in zip(series, told, strict=True)], HORIZON, known)
        for each, n, row, answer in zip(series, told, known, found, strict=True):
            np.testing.assert_allclose(answer, made.forecast(each[None, :n], HORIZON, row[None])[0], rtol=CLOSE)


def test_several_steps_at_once_are_those_after_the_last_step(series):
    made, told = predictor_of(HORIZON), 8
    scaled = [[by_hand(each, step, each[step, 1], HORIZON) for step in range(told)] for each in series]
    with torch.no_grad():
        y = made.model(torch.tensor(scaled, dtype=torch.float32).transpose(0, 1))[0]
    found = made.forecast(series[:, :told], HORIZON, series[:, told:, [0, 2]])
    np.testing.assert_allclose(found[..., 0], y[-1] * 10 + 50, rtol=CLOSE)
    fewer = made.forecast(series[:, :told], 2, series[:, told:, [0, 2]])
    assert fewer.shape == (5, 2, 1)
    # `predict` gives the first of the steps. It knows nothing of the step after the last.
    next_step = made.predict(series[:, :told])
    np.testing.assert_allclose(next_step[:, 2, 0], y[2, :, 0] * 10 + 50, rtol=CLOSE)
    assert np.isnan(next_step[:, -1]).all()
    with pytest.raises(ValueError, match="horizon must be at most 4, the steps that this model predicts, got 5"):
        made.forecast(series[:, :told], 5, series[:, told:, [0, 2]])


def test_several_columns_stand_in_the_order_of_the_steps():
    columns = (LOAD, DataColumn("flow", mean=-3.0, deviation=0.1))
    made = predictor_of(3, columns)
    x = np.random.default_rng(0).normal(size=(2, 6, 2)) * [10, 0.1] + [50, -3]
    with torch.no_grad():
        y = made.model(made.schema.scale_inputs(torch.from_numpy(x)).float().transpose(0, 1))[0][-1]
    expected = y.reshape(2, 3, 2).numpy() * [10, 0.1] + [50, -3]
    np.testing.assert_allclose(made.forecast(x, 3), expected, rtol=CLOSE)
    assert made.schema.output_names == ["load (+1)", "flow (+1)", "load (+2)", "flow (+2)", "load (+3)", "flow (+3)"]
    assert made.predict(x).shape == x.shape


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_tables_find_each_other_by_the_names_of_the_sequences(frame, series):
    made, told = predictor_of(), 8
    expected = made.forecast(series[:, :told], HORIZON, series[:, told:, [0, 2]])

    def table(rows, order):
        picked = rows[order]
        return frame(
            {
                "sequence": np.repeat([f"s{n}" for n in order], picked.shape[1]),
                "day": np.array(DAY.categories)[picked[..., 2].astype(int).ravel()],
                "rain": picked[..., 0].ravel(),
                "load": picked[..., 1].ravel(),
            }
        )

    past, coming = table(series[:, :told], [0, 1, 2, 3, 4]), table(series[:, told:], [4, 2, 0, 1, 3])
    np.testing.assert_allclose(made.forecast(past, HORIZON, coming), expected, rtol=CLOSE)
    with pytest.raises(ValueError, match="it has none of 's4'"):
        made.forecast(past, HORIZON, table(series[:, told:], [0, 1, 2, 3]))


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (None, "known must hold rain, day at the steps to forecast, which this model reads, got None"),
        (np.zeros((5, 3, 2)), "known must have 4 steps for each sequence, sequence 0 has 3"),
        (np.zeros((4, 4, 2)), "known must have as many sequences as X, 5, got 4"),
        (np.zeros((5, 4, 3)), r"known cannot be used: X must be an array \(N, T, 2\), .* rain, day, got \(5, 4, 3\)"),
        (np.full((5, 4, 2), 7), "whole numbers from 0 to 1 in day"),
        (np.full((5, 4, 2), np.nan), "step 12 of sequence 0 has nan"),
    ],
)
def test_what_is_known_must_fit(known, message, series):
    with pytest.raises(ValueError, match=message):
        predictor_of().forecast(series, HORIZON, known)


def test_models_that_know_nothing_ahead_take_no_known_inputs():
    with pytest.raises(ValueError, match="known must be left out"):
        predictor_of(columns=(LOAD,)).forecast(np.zeros((1, 4)), 2, np.zeros((1, 2)))
    with pytest.raises(ValueError, match="kind number that is not known ahead"):
        predictor_of(columns=(RAIN,))
    with pytest.raises(ValueError, match="go with kind next, got regression"):
        DataSchema("regression", "last", COLUMNS, (LOAD,))
    with pytest.raises(ValueError, match="horizon must be a whole number of at least 1, got 0"):
        predictor_of(0)
    with pytest.raises(ValueError, match="known of column 'wait' must be false"):
        DataColumn("wait", "gap", known=True)


def test_a_bundle_keeps_what_is_known_and_the_horizon(tmp_path, series):
    made = predictor_of(HORIZON)
    evenflow.save(made, tmp_path / "model")
    loaded = evenflow.load(tmp_path / "model")
    known = series[:, 8:, [0, 2]]
    assert (loaded.forecast(series[:, :8], 4, known) == made.forecast(series[:, :8], 4, known)).all()
