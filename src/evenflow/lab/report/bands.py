"""Plots of measured Jacobian norms ‖∂h_T/∂h_k‖ inside the band of their theoretical bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenflow.lab.report.downsample import extremes, points
from evenflow.lab.report.numbers import number
from evenflow.lab.report.plotting import DASHED, Panel, log_axis, plot
from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.report.svg import MUTED, series_variable

POINTS, PAGE_POINTS = 240, 6_000  # most points of a line, and of all lines of a page's panels of one kind
AROUND = 3.0  # decades above and below the measured norms that a band may add to the plot
SMALLEST, LARGEST = -300.0, 300.0  # decades that floats can represent


def band_panels(runs: Sequence[RunRecord]) -> list[tuple[int, Panel]]:
    """Two panels per run, with the run's number: measured norms and their band over training, and over lags.

    The first has ‖∂h_T/∂h_1‖ at every probe, the second ‖∂h_T/∂h_{T-lag}‖ at the last probe.

    Reference: Lin and Wang, figure 4.
    """
    panels = []
    for index, run in enumerate(runs):
        notes = ["No Jacobians were recorded."] if run.jacobian is None else []
        training = Panel(f"band-{index}", f"{run.label}, over training", notes=notes)
        lags = Panel(f"lags-{index}", f"{run.label}, over lags", notes=[*notes])
        panels += [(index, training), (index, lags)]
        if run.jacobian is None or run.probe_step is None:
            continue
        last = _last_lag(run.jacobian)
        norms, lag = run.jacobian[:, last], np.full(len(run.probe_step), last)
        logs = None if run.band is None else _log_powers(run.jacobian[:, 0], run.band, lag)
        what = f"the whole way, {last} steps back"
        _draw(training, index, "update", run.probe_step, norms, logs, what, len(runs))
        norms, lag = run.jacobian[-1, : last + 1], np.arange(last + 1)
        logs = None if run.band is None else _log_powers(norms[:1], run.band[-1:], lag)
        _draw(lags, index, "lag", lag, norms, logs, "after training, by steps back", len(runs))
    return panels


def _last_lag(jacobian: np.ndarray) -> int:
    """The longest lag that some sequence had at every probe."""
    return int(np.flatnonzero(~np.isnan(jacobian).all(0))[-1]) if not np.isnan(jacobian).all() else 0


def _log_powers(start: np.ndarray, band: np.ndarray, lag: np.ndarray) -> np.ndarray:
    """log10 of ``‖I‖ factor^lag``, ``(points, 2)``: the powers themselves would overflow."""
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
    runs: int,
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
        panel.notes += _bounds_outside(logs, bottom, top)
    else:
        panel.notes.append("No theorem here gives a band for this cell.")
    if usable.sum() < len(value):
        panel.notes.append("Where the line is missing the norm is zero or not finite.")
    bottom, top = max(bottom, SMALLEST), min(top, LARGEST)
    ends = [f"{number(float(value[usable][i]))} at {across} {int(x[usable][i]):,}" for i in (0, -1)]
    panel.alt = f"Line plot of the norm of the Jacobian, {what}: {', '.join(ends)}."
    with plot(panel, across, height=270) as current:
        keep = extremes(np.where(usable, value, np.median(value[usable])), points(3 * runs, POINTS, PAGE_POINTS))
        x, line = x[keep], np.where(usable, value, np.nan)[keep]
        if logs is not None:
            shown = 10 ** np.clip(logs[keep], bottom - 1, top + 1)
            current.band(x, shown[:, 0], shown[:, 1], MUTED, 0.16)
            for edge in shown.T:
                current.axes.plot(x, edge, color=MUTED, linewidth=1.2, linestyle=DASHED)
        current.line(index, x, line, markers=False, zorder=2.5)
        with np.errstate(over="ignore"):
            bounds = [] if logs is None else list(10.0 ** logs[keep].T)
        if bounds:
            current.read_out("at most", "var(--muted)", x, bounds[1])
        current.read_out("measured", series_variable(index), x, line)
        if bounds:
            current.read_out("at least", "var(--muted)", x, bounds[0])
        log_axis(current.axes, 10**bottom, 10**top, powers=top - bottom >= 3)


def _bounds_outside(logs: np.ndarray, bottom: float, top: float) -> list[str]:
    """Sentences about bounds that lie outside the plot."""
    lower, upper = logs[:, 0], logs[:, 1]
    notes = []
    if not (lower > bottom).any():
        zero = np.isneginf(lower).all()
        notes.append("The lower bound is zero." if zero else "The lower bound lies below the plot.")
    if not (upper < top).any():
        most = float(upper[-1])
        notes.append(f"The upper bound lies above the plot, at {number(10.0**most) if most < 300 else 'over 10³⁰⁰'}.")
    return notes
