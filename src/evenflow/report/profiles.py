"""Gradient norm against time steps, all runs in one plot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenflow.report import hover, reach
from evenflow.report.heatmap import Scale, shared_scale
from evenflow.report.record import Record
from evenflow.report.svg import (
    Panel,
    count_axis,
    drawing,
    inline,
    log_axis,
    series_colour,
    series_marker,
    series_name,
)
from evenflow.report.thinning import extremes, points

POINTS, FIGURE_POINTS = 400, 5_000  # of a line, and of all lines of a figure


def profiles(runs: Sequence[Record]) -> list[Panel]:
    """Two plots: at the first probe and at the last."""
    scale = shared_scale(runs)
    return [
        _profile("profile-first", "At the first probe", 0, runs, scale),
        _profile("profile-last", "At the last probe", -1, runs, scale),
    ]


def _profile(key: str, title: str, which: int, runs: Sequence[Record], scale: Scale | None) -> Panel:
    panel = Panel(key, title)
    if scale is None:
        panel.notes.append("No run has a gradient that is a finite number above zero.")
        return panel
    parts, series = [], []
    with drawing(480, 300) as figure:
        axes = figure.add_subplot()
        for index, run in enumerate(runs):
            if run.probe_norm is None or run.probe_step is None:
                panel.notes.append(f"{run.label} has no probes.")
                continue
            row = run.probe_norm[which]
            parts.append(f"the gradient of {run.label} {reach.sentence(row)}")
            usable = np.isfinite(row) & (row > 0)
            if not usable.any():
                panel.notes.append(f"{run.label} has no finite gradient above zero at this probe.")
                continue
            # A step without a gradient takes the middle of the line, is kept by chance, and leaves a hole if it is.
            keep = extremes(np.where(usable, row, np.median(row[usable])), points(len(runs), POINTS, FIGURE_POINTS))
            time, drawn = keep + 1, np.where(usable, row, np.nan)[keep]
            axes.plot(
                time, drawn, color=series_colour(index), marker=series_marker(index), markersize=5,
                markevery=max(1, len(keep) // 8),
            )  # fmt: skip
            series.append(hover.Series(run.label, series_name(index), time, row[keep]))
        log_axis(axes, 10 ** (scale.low - 0.3), 10 ** (scale.high + 0.3), powers=True)
        count_axis(axes, "time step t")
        axes.set_xlim(1, max(2, *(r.probe_norm.shape[1] for r in runs if r.probe_norm is not None)))
        panel.alt = f"Line plot of the gradient norm against time steps. {title}: " + "; ".join(parts) + "."
        panel.svg = inline(figure, key, panel.alt)
        panel.hover = hover.lines(axes, "step", series)
    return panel
