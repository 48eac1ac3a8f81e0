"""Plots of gradient norms against time steps, one line per run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from evenflow.lab.report import gradient_reach
from evenflow.lab.report.downsample import extremes, points
from evenflow.lab.report.heatmap import ColourScale, shared_scale
from evenflow.lab.report.plotting import Panel, log_axis, plot
from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.report.svg import series_colour, series_variable

POINTS, FIGURE_POINTS = 400, 5_000  # most points of a line, and of all lines of a figure


def profiles(runs: Sequence[RunRecord]) -> list[Panel]:
    """Two plots: at the first probe and at the last."""
    scale = shared_scale(runs)
    rows = [[[s.probe_norm[which] for s in run.seeds if s.probe_norm is not None] for run in runs] for which in (0, -1)]
    return [
        _profile("profile-first", "At the first probe", "norm of ∂L/∂h at the first probe", runs, rows[0], scale),
        _profile("profile-last", "At the last probe", "norm of ∂L/∂h at the last probe", runs, rows[1], scale),
    ]


def component_profile(runs: Sequence[RunRecord]) -> list[Panel]:
    """One plot of the temporal components before training; an empty list if no run has them.

    For runs that differ in the spectral radius, it is figure 3.1 of Galvan.
    """
    rows = [[seed.components for seed in run.seeds if seed.components is not None] for run in runs]
    usable = [row[np.isfinite(row) & (row > 0)] for own in rows for row in own]
    if not any(len(row) for row in usable):
        return []
    values = np.log10(np.concatenate(usable))
    scale = ColourScale(float(values.min()), float(values.max()), "neither")
    return [_profile("components", "Temporal components before training", "norm of the component", runs, rows, scale)]


def _profile(
    key: str,
    title: str,
    quantity: str,
    runs: Sequence[RunRecord],
    rows: Sequence[Sequence[np.ndarray]],
    scale: ColourScale | None,
) -> Panel:
    panel = Panel(key, title, quantity=quantity, prints=True)
    if scale is None:
        panel.notes.append("No run has a gradient that is a finite number above zero.")
        return panel
    reaches = []
    with plot(panel, "time step t", across="step") as current:
        for index, (run, own) in enumerate(zip(runs, rows, strict=True)):
            if not own:
                panel.notes.append(f"{run.label} has none." if key == "components" else f"{run.label} has no probes.")
                continue
            row, band = _mean_profile(own)
            reaches.append(f"the gradient of {run.label} {gradient_reach.sentence(row)}")
            usable = np.isfinite(row) & (row > 0)
            if not usable.any():
                panel.notes.append(f"{run.label} has no finite gradient above zero at this probe.")
                continue
            # Steps without a gradient count as the median when points are selected, and leave a gap if selected.
            keep = extremes(np.where(usable, row, np.median(row[usable])), points(len(runs), POINTS, FIGURE_POINTS))
            if band is not None:
                current.band(np.arange(1, len(row) + 1), *band, series_colour(index), 0.2)
            current.line(index, keep + 1, np.where(usable, row, np.nan)[keep])
            current.read_out(run.label, series_variable(index), keep + 1, row[keep])
        log_axis(current.axes, 10 ** (scale.low - 0.3), 10 ** (scale.high + 0.3), powers=True)
        current.axes.set_xlim(1, max(2, *(len(row) for own in rows for row in own)))
        panel.alt = f"Line plot of the gradient norm against time steps. {title}: " + "; ".join(reaches) + "."
    return panel


def _mean_profile(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
    """The geometric mean over seeds, as the axis is logarithmic, and one standard error around it; or the only row."""
    alike = [row for row in rows if len(row) == len(rows[0])]
    if len(alike) == 1:
        return alike[0], None
    table = np.stack(alike)
    logs = np.log(np.where(np.isfinite(table) & (table > 0), table, np.nan))  # nan where a seed has no gradient
    mean, error = logs.mean(0), logs.std(0, ddof=1) / math.sqrt(len(logs))
    return np.nan_to_num(np.exp(mean)), (np.exp(mean - error), np.exp(mean + error))
