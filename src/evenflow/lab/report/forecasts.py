"""Forecasts of several steps on the page: a fan over the true series, and a table of their errors by steps ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evenflow.lab.report.numbers import number
from evenflow.lab.report.plotting import Panel, plot
from evenflow.lab.report.svg import INK, series_colour, series_variable

AHEAD = (1, 2, 3, 6, 12, 24)  # rows of the table, and the last step
LONG = 18  # letters of a name on an axis


@dataclass(frozen=True)
class ShownForecasts:
    """The forecasts of a run, see `training.forecast_log.ForecastLog.arrays`.

    Shapes:
        errors ``(O, H, 3)`` of the model, of the naive and of the seasonal naive forecast; scale ``(O,)``; true
        ``(S, O)``; starts ``(K,)``; predicted ``(K, H, O)``.
    """

    horizon: int
    season: int
    sequences: int
    origins: int
    sequence: int
    first: int
    errors: np.ndarray
    scale: np.ndarray
    true: np.ndarray
    starts: np.ndarray
    predicted: np.ndarray


def read_forecasts(arrays: dict[str, np.ndarray]) -> ShownForecasts | None:
    """The forecasts in answers.npz; None of a run without them, and a ValueError if they do not agree."""
    if "forecast_horizon" not in arrays:
        return None
    words = ("horizon", "season", "sequences", "origins", "sequence", "first")
    counts: dict[str, Any] = {word: int(arrays[f"forecast_{word}"]) for word in words}
    tables: dict[str, Any] = {
        name: arrays[f"forecast_{name}"].astype(np.float64) for name in ("errors", "scale", "true", "predicted")
    }
    starts = arrays["forecast_starts"].astype(np.int64, casting="safe")
    shown = ShownForecasts(**counts, **tables, starts=starts)
    width, ends = len(shown.scale), shown.starts + shown.horizon - shown.first
    if (
        min(shown.horizon, shown.season, shown.origins, width, len(starts)) < 1
        or shown.errors.shape != (width, shown.horizon, 3)
        or shown.predicted.shape != (len(starts), shown.horizon, width)
        or shown.true.shape != (int(ends.max()), width)
        or int(starts.min()) <= shown.first
    ):
        raise ValueError("forecasts that do not agree")
    return shown


def forecast_table(shown: ShownForecasts, columns: list[str]) -> dict[str, Any]:
    """Headings and rows as text: mean absolute errors, and MASE, some steps ahead and over all steps."""
    seasonal = shown.season > 1
    headings = ["Mean absolute error", "Naive", *(["Seasonal naive"] if seasonal else []), "MASE"]
    ahead = sorted({*(step for step in AHEAD if step < shown.horizon), shown.horizon})
    rows = []
    for column, errors, scale in zip(columns, shown.errors, shown.scale.tolist(), strict=False):
        means = {f"{step:,}": errors[step - 1] for step in ahead}
        if shown.horizon > 1:
            means[f"1 to {shown.horizon:,}"] = errors.mean(0)
        for steps, each in means.items():
            model, *naive = each.tolist()
            mase = number(model / scale) if scale > 0 else "–"
            rows.append([column, steps, number(model), *map(number, naive[: 1 + seasonal]), mase])
    return {"headings": headings, "rows": rows}


def forecast_caption(shown: ShownForecasts) -> str:
    """What was forecast and what the table compares it with."""
    forecasts = f"{shown.origins:,} forecast{'s' * (shown.origins > 1)} of {shown.horizon:,} steps"
    sequences = f"{shown.sequences:,} sequence{'s' * (shown.sequences > 1)}"
    season, change = "", "from one step to the next"
    if shown.season > 1:
        season = (
            f" The seasonal naive forecast repeats the last {shown.season:,} steps, the season that fits these data "
            "best of those no longer than the steps before a first forecast."
        )
        change = f"over {shown.season:,} steps"
    return (
        f"{forecasts} in {sequences}, at most 8 in each and at most 100 sequences. A forecast reads the steps before "
        "it, and then its own predictions unless the model predicts several steps at once; it is 24 steps long, or as "
        "long as the model predicts at once, or a quarter of a sequence if that is less. The naive "
        f"forecast is the last value.{season} MASE is the mean absolute error divided by the mean absolute change "
        f"{change}. evenflow evaluate with --horizon and --season forecasts a file from other steps, so its "
        "numbers differ."
    )


def forecast_panels(key: str, shown: ShownForecasts, columns: list[str], part: str, colour: int = 0) -> list[Panel]:
    """A panel for each column: the true series, and over it the forecasts from each origin."""
    return [
        _panel(f"{key}-{place}", shown, place, column, part, colour)
        for place, column in enumerate(columns[: len(shown.scale)])
    ]


def _panel(key: str, shown: ShownForecasts, place: int, column: str, part: str, colour: int) -> Panel:
    panel = Panel(key, f"{column}: forecasts over the truth")
    true, predicted = shown.true[:, place], shown.predicted[..., place]
    time = shown.first + 1 + np.arange(len(true))
    many = len(shown.starts) > 1
    panel.alt = (
        f"{column} in steps {time[0]:,} to {time[-1]:,} of sequence {shown.sequence + 1:,} of the {part} part, and "
        f"{len(shown.starts)} forecast{'s' * many} of {shown.horizon:,} steps."
    )
    if not np.isfinite(true).any():
        return panel
    ahead = shown.starts[:, None] + 1 + np.arange(shown.horizon)
    with plot(panel, "time step", across="step") as current:
        axes = current.axes
        axes.plot(time, true, color=INK, linewidth=1, zorder=3)
        finite = np.isfinite(true)
        current.read_out("true", "var(--ink)", time[finite], true[finite])
        # A forecast that runs away would press the truth flat.
        span = float(np.ptp(true[finite])) or abs(float(true[finite][0])) or 1.0
        low, high = float(true[finite].min()) - span, float(true[finite].max()) + span
        for steps, values in zip(ahead, predicted, strict=True):
            axes.plot(steps, values, color=series_colour(colour), linewidth=2.6)
            if low <= values[0] <= high:
                axes.plot(steps[:1], values[:1], "o", color=series_colour(colour), markersize=5)
        known = np.isfinite(predicted)
        if known.any():
            current.read_out("forecast", series_variable(colour), ahead[known], predicted[known])
        axes.set_ylabel(column if len(column) <= LONG else column[: LONG - 1] + "…")
        bottom, top = axes.get_ylim()
        axes.set_ylim(max(bottom, low), min(top, high))
    panel.notes.append(
        f"Sequence {shown.sequence + 1:,} of the {part} part: the truth is the thin line; each thick line is a "
        "forecast and begins at its dot."
    )
    if not known.all():
        panel.notes.append("Forecasts that are not finite are left out.")
    if ((predicted[known] < low) | (predicted[known] > high)).any():
        panel.notes.append("Forecasts beyond the figure are cut off.")
    return panel
