"""Rolling backtest of a forecaster against the naive and the seasonal naive forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenflow.models.predictor import Predictor


@dataclass(frozen=True)
class Backtest:
    """The result of a `Backtester`.

    Attributes:
        horizon, season: of the forecasts; season 1 if none was given.
        origins: how many forecasts were made.
        errors: a row for each predicted column: `mae` of the model, `naive` (the last value stays), `seasonal` (the
            values of the last season come again; equal to `naive` for season 1), and `mase`, `mae` divided by the mean
            absolute difference of values one season apart.
        ahead: ``(O, horizon, 3)``, for each step ahead the mean absolute error of the model, of the naive and of the
            seasonal naive forecast.
        scale: ``(O,)``, the mean absolute differences of values one season apart.
    """

    horizon: int
    season: int
    origins: int
    errors: list[dict[str, Any]]
    ahead: np.ndarray
    scale: np.ndarray


class Backtester:
    """Compares forecasts with what came, sequence by sequence.

    Args:
        predictor: a model that predicts the next step.
        horizon: steps of a forecast.
        season: steps after which the series repeats itself; 1 for no season.
    """

    def __init__(self, predictor: Predictor, horizon: int, season: int = 1) -> None:
        schema = predictor.schema
        self.predictor, self.horizon, self.season = predictor, horizon, season
        self.origins = 0
        self._places = [schema.inputs.index(column) for column in schema.predicted]
        self._known = [place for place, column in enumerate(schema.inputs) if column.known]
        self._sums, self._counts = np.zeros((2, 3, horizon, len(self._places)))
        self._change, self._changes = np.zeros((2, len(self._places)))

    def add(self, x: np.ndarray, starts: Sequence[int]) -> np.ndarray:
        """Forecast from some steps of a sequence ``(T, I)``, reading only what came before: ``(N, horizon, O)``.

        Inputs that are known ahead are read at the steps that are forecast, too.
        Missing values, which are nan, are not compared.
        """
        y = x[:, self._places]
        true = y[np.array(starts)[:, None] + np.arange(self.horizon)]
        known = [x[start : start + self.horizon, self._known] for start in starts] if self._known else None
        forecasts = self.predictor.forecast([x[:start] for start in starts], self.horizon, known).reshape(true.shape)
        seasonal = seasonal_forecast(y, starts, self.horizon, self.season)
        for place, forecast in enumerate((forecasts, seasonal_forecast(y, starts, self.horizon, 1), seasonal)):
            error = abs(true - forecast)
            self._sums[place] += np.nansum(error, 0)
            self._counts[place] += (~np.isnan(error)).sum(0)
        change = abs(y[self.season :] - y[: -self.season])
        self._change += np.nansum(change, 0)
        self._changes += (~np.isnan(change)).sum(0)
        self.origins += len(starts)
        return forecasts

    def result(self) -> Backtest:
        """The mean errors of all forecasts so far."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ahead = (self._sums / self._counts).transpose(2, 1, 0)
            total = self._sums.sum(1) / self._counts.sum(1)
            scale = self._change / self._changes
        errors = []
        columns = self.predictor.schema.predicted
        for column, (model, naive, seasonal), unit in zip(columns, total.T.tolist(), scale.tolist(), strict=True):
            mase = model / unit if unit > 0 else float("nan")
            errors.append({"column": column.name, "mae": model, "naive": naive, "seasonal": seasonal, "mase": mase})
        return Backtest(self.horizon, self.season, self.origins, errors, ahead, scale)


def seasonal_forecast(y: np.ndarray, starts: Sequence[int], horizon: int, season: int) -> np.ndarray:
    """The last season of ``(T, O)`` before each start again and again: ``(N, horizon, O)``; season 1 is the naive one.

    >>> seasonal_forecast(np.array([[1.0], [2.0], [3.0]]), [3], horizon=4, season=2)[0, :, 0]
    array([2., 3., 2., 3.])
    """
    return y[np.array(starts)[:, None] - season + np.arange(horizon) % season]
