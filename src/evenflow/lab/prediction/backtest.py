"""Rolling backtest of a forecaster against the naive and the seasonal naive forecast."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenflow.checks import whole_number
from evenflow.lab.data.file_blocks import file_blocks
from evenflow.lab.data.table_blocks import Progress
from evenflow.models import Predictor


@dataclass(frozen=True)
class Backtest:
    """The result of `backtest_file`.

    Attributes:
        horizon, season: of the forecasts; season 1 if none was given.
        origins: how many forecasts were made.
        errors: a row for each predicted column: `mae` of the model, `naive` (the last value stays), `seasonal` (the
            values of the last season come again; equal to `naive` for season 1), and `mase`, `mae` divided by the mean
            absolute difference of values one season apart.
    """

    horizon: int
    season: int
    origins: int
    errors: list[dict[str, Any]]


def backtest_file(
    predictor: Predictor,
    source: str | os.PathLike[str],
    horizon: int,
    season: int | None = None,
    *,
    progress: Progress | None = None,
) -> Backtest:
    """Forecast `horizon` steps from every `horizon`-th step of each sequence of a file, and compare with what came.

    Each forecast reads the steps before it: as many as a piece has if the model was trained on pieces of one series,
    else all. The first one starts after a season, and after such a piece.

    Args:
        predictor: a model that predicts the next step.
        source: a file in the layout of the training data; it is held in memory.
        horizon: steps of a forecast.
        season: steps after which the series repeats itself, such as 24 for the hours of a day. Default: no season.
        progress: called with the bytes read so far and those of the file.
    """
    whole_number("horizon", horizon, 1)
    season = 1 if season is None else season
    whole_number("season", season, 1)
    schema = predictor.schema
    if schema.kind != "next":
        raise ValueError(f"horizon needs a model that predicts the next step, this one is for {schema.kind}")
    places = [schema.inputs.index(column) for column in schema.predicted]
    first = max(season, schema.length or horizon, 2)
    sums, steps, origins = np.zeros((4, len(places))), 0, 0
    apart = 0
    whole = dataclasses.replace(schema, length=None)
    for block in file_blocks(source, whole, learned=False, progress=progress):
        for x in block.inputs:
            starts = range(first, len(x) - horizon + 1, horizon)
            if not starts:
                continue
            y = x[:, places]
            ahead = np.array(starts)[:, None] + np.arange(horizon)
            true = y[ahead]
            last = np.array(starts)[:, None] - season + np.arange(horizon) % season
            found = predictor.forecast([x[:start] for start in starts], horizon).reshape(true.shape)
            naive, seasonal = y[np.array(starts) - 1][:, None], y[last]
            for place, forecast in enumerate((found, naive, seasonal)):
                sums[place] += np.nansum(abs(true - forecast), (0, 1))
            sums[3] += np.nansum(abs(y[season:] - y[:-season]), 0)
            steps, origins, apart = steps + true[..., 0].size, origins + len(starts), apart + len(y) - season
    if not origins:
        raise ValueError(
            f"file {str(source)!r} is too short for a backtest: a sequence needs {first + horizon} steps, "
            f"{first} before the first forecast and {horizon} to compare with"
        )
    errors = []
    for column, (model, naive, seasonal), scale in zip(
        schema.predicted, sums[:3].T / steps, sums[3] / apart, strict=True
    ):
        mase = float(model / scale) if scale > 0 else float("nan")
        row = {"mae": float(model), "naive": float(naive), "seasonal": float(seasonal), "mase": mase}
        errors.append({"column": column.name, **row})
    return Backtest(horizon, season, origins, errors)
