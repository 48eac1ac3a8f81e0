"""Gradient norm ‖∂L/∂h_t‖ over time steps × training: one heat map per run and layer, one colour scale for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from evenflow.lab.report import hover, reach
from evenflow.lab.report.numbers import number, power
from evenflow.lab.report.record import Record
from evenflow.lab.report.svg import MUTED, Panel, count_axis, drawing, inline
from evenflow.lab.report.thinning import groups, outliers

BELOW, ABOVE = 8.0, 4.0  # decades shown around the usual gradient at the last step
COLOURS = "viridis"
ROWS = 120  # probes in one map: a row is then two pixels high
CELLS, PAGE_CELLS = 36_000, 150_000  # in one map, and in all maps of a page; a cell takes about eight bytes


@dataclass(frozen=True)
class Scale:
    """log10 of the gradient norms that get the darkest and the brightest colour, and whether any lie beyond."""

    low: float
    high: float
    beyond: str  # matplotlib's word: neither, min, max or both


def shared_scale(runs: Sequence[Record]) -> Scale | None:
    """One scale for all runs: their range, cut to 8 decades below and 4 above the usual last-step gradient.

    Cut, because one run that explodes to 1e30 or dies to 1e-40 would leave a single colour for all the others.
    None when no run has a finite gradient above zero.
    """
    norms = [r.probe_norm for r in runs if r.probe_norm is not None]
    layers = [r.layer_norm.ravel() for r in runs if r.layer_norm is not None]
    everything = _logs(np.concatenate([n.ravel() for n in norms] + layers)) if norms else np.array([])
    if not everything.size:
        return None
    last = _logs(np.concatenate([n[:, -1] for n in norms]))
    middle = float(np.median(last if last.size else everything))
    least, most = float(everything.min()), float(everything.max())
    low, high = max(np.floor(least), np.floor(middle - BELOW)), min(np.ceil(most), np.ceil(middle + ABOVE))
    if high - low < 1:
        high = low + 1
    beyond = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    return Scale(float(low), float(high), beyond[least < low, most > high])


def heat_maps(runs: Sequence[Record]) -> list[Panel]:
    """One panel per run, in order; a run without probes keeps its place with a sentence."""
    scale, budget = shared_scale(runs), _budget(runs)
    return [_heat_map(f"heat-{i}", run.label, run, run.probe_norm, scale, budget) for i, run in enumerate(runs)]


def layer_maps(runs: Sequence[Record]) -> list[tuple[int, Panel]]:
    """One panel for each layer and direction of the runs that have several, with the number of the run."""
    scale, budget = shared_scale(runs), _budget(runs)
    return [
        (i, _heat_map(f"heat-{i}-{j}", f"{run.label}, {name}", run, run.layer_norm[:, j], scale, budget))
        for i, run in enumerate(runs)
        if run.layer_norm is not None
        for j, name in enumerate(run.layers)
    ]


def _budget(runs: Sequence[Record]) -> int:
    """Cells for each map."""
    return min(CELLS, PAGE_CELLS // max(1, len(runs) + sum(len(run.layers) for run in runs)))


def _heat_map(key: str, title: str, run: Record, norm: np.ndarray | None, scale: Scale | None, budget: int) -> Panel:
    panel, step = Panel(key, title), run.probe_step
    if norm is None or step is None:
        panel.notes.append(run.probe_gap)
        return panel
    bad, zero = ~np.isfinite(norm), norm == 0
    if bad.any():
        panel.notes.append(f"{_share(bad)} of the gradients are not finite (grey).")
    if zero.any():
        panel.notes.append(f"{_share(zero)} of the gradients are exactly zero (darkest colour).")
    if scale is None:
        panel.notes.append("No gradient is a finite number above zero, so there is nothing to draw.")
        return panel
    panel.alt = (
        f"Heat map of the gradient norm of {title}, {len(step)} probes by {norm.shape[1]} time steps. "
        f"The gradient {reach.sentence(norm[0])} at update {int(step[0]):,}, "
        f"and {reach.sentence(norm[-1])} at update {int(step[-1]):,}."
    )
    rows, columns = _blocks(norm, budget)
    shown = _thinned(norm, scale, rows, columns, panel)
    edges = _edges(step)
    with drawing(480, 270) as figure:
        axes = figure.add_subplot()
        axes.grid(False)
        colours = colormaps[COLOURS].with_extremes(bad="#9a9a9a")
        with np.errstate(divide="ignore"):
            logs = np.where(shown == 0, scale.low - 1, np.log10(shown))
        extent = (0.5, norm.shape[1] + 0.5, edges[0], edges[-1])
        image = axes.imshow(
            np.ma.masked_invalid(_even(logs, edges[rows])), cmap=colours, vmin=scale.low, vmax=scale.high,
            extent=extent, origin="lower", aspect="auto", interpolation="none",
        )  # fmt: skip
        _draw_reach(axes, norm, edges)
        count_axis(axes, "time step t")
        count_axis(axes, "update", "y")
        axes.set_xlim(extent[:2])
        axes.set_ylim(extent[2:])
        bar = figure.colorbar(image, ax=axes, extend=scale.beyond, pad=0.02, fraction=0.06, aspect=18)
        if bar.solids is not None:
            bar.solids.set_rasterized(True)
        whole = np.arange(scale.low, scale.high + 1)
        whole = whole[:: max(1, int(np.ceil(len(whole) / 7)))]
        bar.set_ticks(list(whole), labels=[power(int(e)) for e in whole])
        bar.set_label("gradient norm", color=MUTED)
        bar.outline.set_linewidth(0.6)
        bar.outline.set_edgecolor(MUTED)
        panel.svg = inline(figure, panel.key, panel.alt)
        steps = np.stack([columns[:-1] + 1, columns[1:]], 1)
        updates = np.stack([step[rows[:-1]], step[rows[1:] - 1]], 1)
        panel.hover = hover.cells(axes, shown, edges[rows], steps, updates)
    return panel


def _blocks(norm: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the groups of probes and of time steps that share a cell."""
    rows = groups(len(norm), max(min(ROWS, budget // 100), budget // norm.shape[1]))
    return rows, groups(norm.shape[1], budget // (len(rows) - 1))


def _thinned(norm: np.ndarray, scale: Scale, rows: np.ndarray, columns: np.ndarray, panel: Panel) -> np.ndarray:
    """One of the norms of each cell; 0 and nan where one of them is."""
    if len(rows) - 1 == len(norm) and len(columns) - 1 == norm.shape[1]:
        return np.where(np.isfinite(norm), norm, np.nan)
    panel.notes.append(
        f"{len(norm):,} probes by {norm.shape[1]:,} steps are drawn as {len(rows) - 1:,} by {len(columns) - 1:,} "
        "cells: each shows the one of its values that is furthest from the map's median."
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(np.isfinite(norm), np.where(norm == 0, -400.0, np.log10(norm)), np.nan)  # under all floats
    found = outliers(logs, rows, columns)
    return np.where(found == -400.0, 0.0, 10.0**found)


def _even(table: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Rows of an image of equal heights: the table's own, or enough of them to show rows of different heights."""
    heights = np.diff(edges)
    if np.allclose(heights, heights[0]):
        return table
    lines = min(4 * ROWS, max(2 * len(table), round(float(edges[-1] - edges[0]) / float(heights.min()))))
    middles = edges[0] + (np.arange(lines) + 0.5) / lines * (edges[-1] - edges[0])
    return table[np.clip(np.searchsorted(edges, middles, side="right") - 1, 0, len(table) - 1)]


def _draw_reach(axes: Axes, norm: np.ndarray, rows: np.ndarray) -> None:
    """A line where the gradient of each probe falls under a thousandth of its last-step value, if it does."""
    found = [reach.measure(row) for row in norm]
    at = np.array([np.nan if r is None or r.complete else r.length - r.steps - 0.5 for r in found])
    if np.isfinite(at).any():
        x, y = np.repeat(at, 2), np.repeat(rows, 2)[1:-1]
        axes.plot(x, y, color="#000000", linewidth=3.2, alpha=0.55)
        axes.plot(x, y, color="#ffffff", linewidth=1.6)


def _logs(values: np.ndarray) -> np.ndarray:
    return np.log10(values[np.isfinite(values) & (values > 0)])


def _edges(step: np.ndarray) -> np.ndarray:
    """Borders half-way between probes, so that unevenly spaced probes keep their true height."""
    if len(step) == 1:
        return np.array([step[0] - 0.5, step[0] + 0.5])
    middle = (step[1:] + step[:-1]) / 2
    return np.concatenate([[2 * step[0] - middle[0]], middle, [2 * step[-1] - middle[-1]]])


def _share(mask: np.ndarray) -> str:
    percent = 100 * mask.mean()
    return f"{number(percent, 2)} %" if percent >= 0.01 else "Fewer than 0.01 %"
