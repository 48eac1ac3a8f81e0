"""Plots of the singular values of recurrent matrices over training: mean, standard deviation, smallest and largest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenflow.lab.report.downsample import extremes, points
from evenflow.lab.report.numbers import number
from evenflow.lab.report.plotting import Panel, log_axis, plot
from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.report.svg import series_colour, series_variable

MOST, PAGE_MOST = 8, 60  # most matrices of one run, and of all runs of a page
POINTS, PAGE_POINTS = 240, 12_000  # most points of a line, and of all lines of a page
SPREAD = 1000.0  # largest over smallest value from which the axis is logarithmic
NAMES = ("largest", "mean", "deviation", "smallest")


def singular_values(runs: Sequence[RunRecord]) -> list[tuple[int, Panel]]:
    """One panel for each recurrent matrix, with the number of its run.

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
            key, values = f"singular-{index}-{j}", run.singular[:, j]
            panels.append((index, singular_panel(key, title, index, run.probe_step, values, each)))
        rest = len(run.matrices) - most
        if rest > 0:
            noun = "matrix" if rest == 1 else "matrices"
            panels[-1][1].notes.append(f"{rest} more {noun} of this run: see probes.npz.")
    return panels


def singular_panel(
    key: str,
    name: str,
    index: int,
    step: np.ndarray,
    values: np.ndarray,
    most_points: int = POINTS,
    title: str | None = None,
) -> Panel:
    """Singular values of one matrix against updates.

    Args:
        key: of the panel.
        name: of the run or matrix.
        index: number of the run, which decides the colour.
        step: updates ``(K,)``.
        values: mean, standard deviation, smallest and largest singular value of each probe, ``(K, 4)``.
        most_points: most points of a line.
        title: of the panel. Default: the name.
    """
    panel = Panel(key, name if title is None else title)
    finite = np.isfinite(values).all(1)
    if not finite.any():
        panel.notes.append("No singular value is a finite number.")
        return panel
    step, values = step[finite], values[finite]
    mean, deviation, least, most = values.T
    panel.alt = (
        f"Line plot of the singular values of {name} against updates: from {number(least[0])} to {number(most[0])} "
        f"with mean {number(mean[0])} at update {int(step[0]):,}, from {number(least[-1])} to {number(most[-1])} "
        f"with mean {number(mean[-1])} at update {int(step[-1]):,}."
    )
    with plot(panel, "update", height=270) as current:
        axes = current.axes
        lines = dict(zip(NAMES, (most, mean, deviation, least), strict=True))
        keep = {kind: extremes(line, most_points) for kind, line in lines.items() if kind != "deviation"}
        m = keep["deviation"] = keep["mean"]
        under = np.maximum((mean - deviation)[m], least[m])  # a deviation may reach below zero, a singular value not
        current.band(step[m], under, (mean + deviation)[m], series_colour(index), 0.25)
        for kind, width in (("mean", 2.4), ("largest", 1.1), ("smallest", 1.1)):
            current.line(index, step[keep[kind]], lines[kind][keep[kind]], markers=False, linewidth=width)
        low, high = float(least.min()), float(most.max())
        if low > 0 and high / low > SPREAD:
            log_axis(axes, low / 1.5, high * 1.5, powers=True)
        elif high - low < 1e-3:  # an orthogonal matrix: do not magnify rounding errors
            axes.set_ylim((low + high) / 2 - 0.01, (low + high) / 2 + 0.01)
        if axes.get_ylim()[0] < 1 < axes.get_ylim()[1]:
            current.level(1, width=1.2, zorder=1.5)
        if axes.get_yscale() == "linear":
            axes.ticklabel_format(axis="y", useOffset=False)
        for kind, line in lines.items():
            current.read_out(kind, series_variable(index), step[keep[kind]], line[keep[kind]])
    assert panel.hover is not None
    panel.hover["off"] = ["deviation"]
    return panel
