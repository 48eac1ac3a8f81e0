"""Rolling backtest of a forecaster on a file, against the naive and the seasonal naive forecast."""

from __future__ import annotations

import dataclasses
import os

from evenflow.checks import whole_number
from evenflow.lab.data.file_blocks import file_blocks
from evenflow.lab.data.table_blocks import Progress
from evenflow.models import Predictor
from evenflow.models.backtester import Backtest, Backtester


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
    first = max(season, schema.length or horizon, 2)
    test = Backtester(predictor, horizon, season)
    whole = dataclasses.replace(schema, length=None)
    for block in file_blocks(source, whole, learned=False, progress=progress):
        for x in block.inputs:
            if starts := range(first, len(x) - horizon + 1, horizon):
                test.add(x, starts)
    if not test.origins:
        raise ValueError(
            f"file {str(source)!r} is too short for a backtest: a sequence needs {first + horizon} steps, "
            f"{first} before the first forecast and {horizon} to compare with"
        )
    return test.result()
