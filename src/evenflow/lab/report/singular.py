"""Singular values of every recurrent matrix over training: mean, deviation, smallest and largest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenflow.lab.report import hover
from evenflow.lab.report.numbers import number
from evenflow.lab.report.record import Record
from evenflow.lab.report.svg import MUTED, Panel, count_axis, drawing, inline, log_axis, series_colour, series_name
from evenflow.lab.report.thinning import extremes, points

MOST, PAGE_MOST = 8, 60  # matrices of one run, and of all runs of a page
POINTS, PAGE_POINTS = 240, 12_000  # of a line, and of all lines of a page
WIDE_RANGE = 1000.0  # largest over smallest value from which a log axis reads better
NAMES = ("largest", "mean", "deviation", "smallest")


def singular_values(runs: Sequence[Record]) -> list[tuple[int, Panel]]:
    """One panel for each recurrent matrix, with the number of its run; the mean, a deviation around it, both ends.

    Reference: Vorontsov et al. 2017, figure 3.
    """
    panels, most = [], max(1, min(MOST, PAGE_MOST // max(1, len(runs))))
    each = points(3 * sum(min(most, len(run.matrices)) for run in runs), POINTS, PAGE_POINTS)
    for index, run in enumerate(runs):
        if run.singular is None or run.probe_step is None:
            panels.append((index, Panel(f"singular-{index}", run.label, notes=["No singular values were recorded."])))
            continue
        for j, name in enumerate(run.matrices[:most]):
            title = run.label if len(run.matrices) == 1 else f"{run.label}, {name}"
            panels.append(
                (index, _panel(f"singular-{index}-{j}", title, index, run.probe_step, run.singular[:, j], each))
            )
        rest = len(run.matrices) - most
        if rest > 0:
            panels[-1][1].notes.append(
                f"{rest} more {'matrix' if rest == 1 else 'matrices'} of this run: see probes.npz."
            )
    return panels


def _panel(key: str, title: str, index: int, step: np.ndarray, values: np.ndarray, each: int) -> Panel:
    panel = Panel(key, title)
    finite = np.isfinite(values).all(1)
    if not finite.any():
        panel.notes.append("No singular value is a finite number.")
        return panel
    step, values = step[finite], values[finite]
    mean, deviation, least, most = values.T
    panel.alt = (
        f"Line plot of the singular values of {title} against updates: from {number(least[0])} to {number(most[0])} "
        f"with mean {number(mean[0])} at update {int(step[0]):,}, from {number(least[-1])} to {number(most[-1])} "
        f"with mean {number(mean[-1])} at update {int(step[-1]):,}."
    )
    colour = series_colour(index)
    with drawing(480, 270) as figure:
        axes = figure.add_subplot()
        keep = {name: extremes(v, each) for name, v in zip(NAMES, (most, mean, mean, least), strict=True)}
        m = keep["mean"]
        under = np.maximum((mean - deviation)[m], least[m])  # a deviation may reach below zero, no singular value does
        axes.fill_between(step[m], under, (mean + deviation)[m], color=colour, alpha=0.25, linewidth=0)
        axes.plot(step[m], mean[m], color=colour, linewidth=2.4)
        for name, line in (("largest", most), ("smallest", least)):
            axes.plot(step[keep[name]], line[keep[name]], color=colour, linewidth=1.1)
        low, high = float(least.min()), float(most.max())
        if low > 0 and high / low > WIDE_RANGE:
            log_axis(axes, low / 1.5, high * 1.5, powers=True)
        elif high - low < 1e-3:  # an orthogonal matrix: a scale of rounding errors would look like a storm
            axes.set_ylim((low + high) / 2 - 0.01, (low + high) / 2 + 0.01)
        if axes.get_ylim()[0] < 1 < axes.get_ylim()[1]:
            axes.axhline(1, color=MUTED, linestyle=(0, (5, 4)), linewidth=1.2, zorder=1.5)
        count_axis(axes, "update")
        if axes.get_yscale() == "linear":
            axes.ticklabel_format(axis="y", useOffset=False)
        panel.svg = inline(figure, key, panel.alt)
        lines = zip(NAMES, (most, mean, deviation, least), strict=True)
        series = [hover.Series(n, series_name(index), step[keep[n]], v[keep[n]]) for n, v in lines]
        panel.hover = hover.lines(axes, "update", series) | {"off": ["deviation"]}
    return panel
