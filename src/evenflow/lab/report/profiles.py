"""Gradient norm against time steps, all runs in one plot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenflow.lab.report import hover, reach
from evenflow.lab.report.heatmap import Scale, shared_scale
from evenflow.lab.report.record import Record
from evenflow.lab.report.svg import (
    Panel,
    count_axis,
    drawing,
    inline,
    log_axis,
    series_colour,
    series_marker,
    series_name,
)
from evenflow.lab.report.thinning import extremes, points

POINTS, FIGURE_POINTS = 400, 5_000  # of a line, and of all lines of a figure


def profiles(runs: Sequence[Record]) -> list[Panel]:
    """Two plots: at the first probe and at the last."""
    scale = shared_scale(runs)
    rows = [[None if r.probe_norm is None else r.probe_norm[which] for r in runs] for which in (0, -1)]
    return [
        _profile("profile-first", "At the first probe", runs, rows[0], scale),
        _profile("profile-last", "At the last probe", runs, rows[1], scale),
    ]


def component_profile(runs: Sequence[Record]) -> list[Panel]:
    """One plot of the temporal components before training; none where no run has them.

    Of runs that differ in their spectral radius it is the document's figure (Galvan, 3.1).
    """
    rows = [run.components for run in runs]
    usable = [row[np.isfinite(row) & (row > 0)] for row in rows if row is not None]
    if not any(len(row) for row in usable):
        return []
    values = np.log10(np.concatenate(usable))
    scale = Scale(float(values.min()), float(values.max()), "neither")
    return [_profile("components", "Temporal components before training", runs, rows, scale)]


def _profile(
    key: str, title: str, runs: Sequence[Record], rows: Sequence[np.ndarray | None], scale: Scale | None
) -> Panel:
    panel = Panel(key, title)
    if scale is None:
        panel.notes.append("No run has a gradient that is a finite number above zero.")
        return panel
    parts, series = [], []
    with drawing(480, 300) as figure:
        axes = figure.add_subplot()
        for index, (run, row) in enumerate(zip(runs, rows, strict=True)):
            if row is None:
                panel.notes.append(f"{run.label} has none." if key == "components" else f"{run.label} has no probes.")
                continue
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
        axes.set_xlim(1, max(2, *(len(row) for row in rows if row is not None)))
        panel.alt = f"Line plot of the gradient norm against time steps. {title}: " + "; ".join(parts) + "."
        panel.svg = inline(figure, key, panel.alt)
        panel.hover = hover.lines(axes, "step", series)
    return panel
