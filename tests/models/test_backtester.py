"""Errors by steps ahead of forecasts from some steps of a sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evenflow import SequenceModel, create
from evenflow.models import DataColumn, DataSchema, Predictor
from evenflow.models.backtester import Backtester, seasonal_forecast


@pytest.mark.parametrize("season", [1, 3])
def test_errors_ahead_are_means_over_the_origins(season: int) -> None:
    torch.manual_seed(0)
    schema = DataSchema("next", "every", (DataColumn("a", mean=50.0, deviation=9.0), DataColumn("b", missing="mean")))
    predictor = Predictor(SequenceModel(create("gru", 2, 5), 2, readout="every"), schema)
    x, starts, horizon = 50 + np.random.RandomState(0).randn(30, 2), [7, 12, 20], 4
    x[13, 1] = np.nan  # the second step of a forecast, and never the last value before one
    test = Backtester(predictor, horizon, season)
    found = test.add(x, starts)
    result = test.result()
    errors = np.full((3, 3, horizon, 2), np.nan)
    for place, start in enumerate(starts):
        np.testing.assert_allclose(found[place], predictor.forecast(x[None, :start], horizon)[0], rtol=1e-6)
        for step in range(horizon):
            true = x[start + step]
            errors[0, place, step] = abs(true - found[place, step])
            errors[1, place, step] = abs(true - x[start - 1])
            errors[2, place, step] = abs(true - x[start - season + step % season])
    np.testing.assert_allclose(result.ahead, np.nanmean(errors, 1).transpose(2, 1, 0))
    np.testing.assert_allclose(result.scale, np.nanmean(abs(x[season:] - x[:-season]), 0))
    for column, row in enumerate(result.errors):
        whole = np.nanmean(errors[..., column], (1, 2))
        assert [row[name] for name in ("mae", "naive", "seasonal")] == pytest.approx(whole)
        assert row["mase"] == pytest.approx(whole[0] / result.scale[column])
    assert (result.origins, result.season) == (3, season)


def test_a_season_comes_again_and_again() -> None:
    y = np.arange(10.0)[:, None]
    assert seasonal_forecast(y, [4, 6], 5, 3)[..., 0].tolist() == [[1, 2, 3, 1, 2], [3, 4, 5, 3, 4]]
