"""Measured Jacobians ‖∂h_T/∂h_k‖ inside the band that theory gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenflow.lab.report import hover
from evenflow.lab.report.numbers import number
from evenflow.lab.report.record import Record
from evenflow.lab.report.svg import MUTED, Panel, count_axis, drawing, inline, log_axis, series_colour, series_name
from evenflow.lab.report.thinning import extremes, points

POINTS, PAGE_POINTS = 240, 6_000  # of a line, and of all lines of a page's panels of one kind
AROUND = 3.0  # decades above and below what was measured that a band may add to the plot
SMALLEST, LARGEST = -300.0, 300.0  # decades that floats can draw


def over_training(runs: Sequence[Record]) -> list[tuple[int, Panel]]:
    """‖∂h_T/∂h_1‖ at every probe and its band, one panel per run, with the run's number.

    Reference: Lin and Wang, figure 4.
    """
    panels, most = [], points(3 * len(runs), POINTS, PAGE_POINTS)
    for index, run in enumerate(runs):
        panel = Panel(f"band-{index}", f"{run.label}, over training")
        panels.append((index, panel))
        if run.jacobian is None or run.probe_step is None:
            panel.notes.append("No Jacobians were recorded.")
            continue
        lag = _last_lag(run.jacobian)
        logs = (
            _powers(run.jacobian[:, 0], run.band, np.full(len(run.probe_step), lag)) if run.band is not None else None
        )
        _draw(
            panel, index, "update", run.probe_step, run.jacobian[:, lag], logs, f"the whole way, {lag} steps back", most
        )
    return panels


def over_lags(runs: Sequence[Record]) -> list[tuple[int, Panel]]:
    """‖∂h_T/∂h_{T-lag}‖ at the last probe and its band, one panel per run, with the run's number."""
    panels, most = [], points(3 * len(runs), POINTS, PAGE_POINTS)
    for index, run in enumerate(runs):
        panel = Panel(f"lags-{index}", f"{run.label}, over lags")
        panels.append((index, panel))
        if run.jacobian is None:
            panel.notes.append("No Jacobians were recorded.")
            continue
        row = run.jacobian[-1, : _last_lag(run.jacobian) + 1]
        lag = np.arange(len(row))
        logs = None
        if run.band is not None:
            logs = _powers(np.full(len(row), row[0]), np.repeat(run.band[-1:], len(row), 0), lag)
        _draw(panel, index, "lag", lag, row, logs, "after training, by steps back", most)
    return panels


def _last_lag(jacobian: np.ndarray) -> int:
    """The longest lag that some sequence had at every probe."""
    return int(np.flatnonzero(~np.isnan(jacobian).all(0))[-1]) if not np.isnan(jacobian).all() else 0


def _powers(start: np.ndarray, band: np.ndarray, lag: np.ndarray) -> np.ndarray:
    """log10 of ``‖I‖ rate^lag``, ``(points, 2)``: powers themselves would leave the floats."""
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(lag[:, None] == 0, 0.0, lag[:, None] * np.log10(band))
        return np.log10(start)[:, None] + steps


def _draw(
    panel: Panel,
    index: int,
    across: str,
    x: np.ndarray,
    value: np.ndarray,
    logs: np.ndarray | None,
    what: str,
    most: int,
) -> None:
    usable = np.isfinite(value) & (value > 0)
    if not usable.any():
        panel.notes.append("No Jacobian is a finite number above zero.")
        return
    measured = np.log10(value[usable])
    low, high = float(measured.min()), float(measured.max())
    bottom, top = low - 0.25, high + 0.25
    if logs is not None:
        edges = logs[np.isfinite(logs)]
        inside = edges[(edges > low - AROUND) & (edges < high + AROUND)]
        if inside.size:
            bottom, top = min(bottom, float(inside.min()) - 0.25), max(top, float(inside.max()) + 0.25)
        _notes(panel, logs, bottom, top)
    else:
        panel.notes.append("No theorem here gives a band for this cell.")
    if usable.sum() < len(value):
        panel.notes.append("Where the line is missing the norm is zero or not finite.")
    bottom, top = max(bottom, SMALLEST), min(top, LARGEST)
    ends = (
        f"{number(float(value[usable][0]))} at {across} {int(x[usable][0]):,}, {number(float(value[usable][-1]))} at "
    )
    panel.alt = f"Line plot of the norm of the Jacobian, {what}: {ends}{across} {int(x[usable][-1]):,}."
    with drawing(480, 270) as figure:
        axes = figure.add_subplot()
        keep = extremes(np.where(usable, value, np.median(value[usable])), most)
        series = [hover.Series("measured", series_name(index), x[keep], np.where(usable, value, np.nan)[keep])]
        if logs is not None:
            shown = 10 ** np.clip(logs[keep], bottom - 1, top + 1)
            axes.fill_between(x[keep], shown[:, 0], shown[:, 1], color=MUTED, alpha=0.16, linewidth=0)
            for column, name in enumerate(("at least", "at most")):
                axes.plot(x[keep], shown[:, column], color=MUTED, linewidth=1.2, linestyle=(0, (5, 4)))
                with np.errstate(over="ignore"):
                    series.insert(
                        2 * (1 - column), hover.Series(name, "var(--muted)", x[keep], 10.0 ** logs[keep, column])
                    )
        axes.plot(x[keep], np.where(usable, value, np.nan)[keep], color=series_colour(index), zorder=2.5)
        log_axis(axes, 10**bottom, 10**top, powers=top - bottom >= 3)
        count_axis(axes, across)
        panel.svg = inline(figure, panel.key, panel.alt)
        panel.hover = hover.lines(axes, across, series)


def _notes(panel: Panel, logs: np.ndarray, bottom: float, top: float) -> None:
    lower, upper = logs[:, 0], logs[:, 1]
    if not (lower > bottom).any():
        panel.notes.append(
            "The lower bound is zero." if np.isneginf(lower).all() else "The lower bound lies below the plot."
        )
    if not (upper < top).any():
        most = float(upper[-1])
        panel.notes.append(
            f"The upper bound lies above the plot, at {number(10.0**most) if most < 300 else 'over 10³⁰⁰'}."
        )
