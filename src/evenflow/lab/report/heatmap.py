"""Heat maps of the gradient norm ‖∂L/∂h_t‖ over time steps and training: one per run and layer, one colour scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from evenflow.lab.report import gradient_reach, hover
from evenflow.lab.report.downsample import groups, outliers
from evenflow.lab.report.numbers import number, power
from evenflow.lab.report.plotting import Panel, count_axis, plot
from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.report.svg import MUTED

BELOW, ABOVE = 8.0, 4.0  # decades shown around the usual gradient at the last step
COLOURS = "viridis"
ROWS = 120  # probes in one map: a row is then two pixels high
CELLS, PAGE_CELLS = 36_000, 150_000  # in one map, and in all maps of a page; a cell takes about eight bytes


@dataclass(frozen=True)
class ColourScale:
    """log10 of the norms with the darkest and the brightest colour, and on which sides norms lie outside them."""

    low: float
    high: float
    beyond: str  # as matplotlib calls it: neither, min, max or both


def shared_scale(runs: Sequence[RunRecord]) -> ColourScale | None:
    """One scale for the maps of all runs and layers."""
    norms = [run.probe_norm for run in runs if run.probe_norm is not None]
    return colour_scale(norms, [run.layer_norm for run in runs if run.layer_norm is not None])


def colour_scale(norms: Sequence[np.ndarray], layers: Sequence[np.ndarray] = ()) -> ColourScale | None:
    """The range of all norms, cut to 8 decades below and 4 above the median gradient at the last step.

    Without the cut, one run whose gradient explodes or vanishes would leave a single colour for all others.

    Args:
        norms: gradient norms, ``(K, T)`` each.
        layers: norms of single layers, of any shape.

    Returns None if no norm is a finite number above zero.
    """
    logs = _logs(np.concatenate([n.ravel() for n in (*norms, *layers)])) if norms else np.array([])
    if not logs.size:
        return None
    last = _logs(np.concatenate([n[:, -1] for n in norms]))
    middle = float(np.median(last if last.size else logs))
    least, most = float(logs.min()), float(logs.max())
    low, high = max(np.floor(least), np.floor(middle - BELOW)), min(np.ceil(most), np.ceil(middle + ABOVE))
    if high - low < 1:
        high = low + 1
    beyond = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    return ColourScale(float(low), float(high), beyond[least < low, most > high])


def heat_maps(runs: Sequence[RunRecord]) -> list[Panel]:
    """One panel per run, in order; for a run without probes the panel holds a sentence."""
    scale, maps, panels = shared_scale(runs), _maps(runs), []
    for i, run in enumerate(runs):
        if run.probe_norm is None or run.probe_step is None:
            panels.append(Panel(f"heat-{i}", run.label, notes=[run.probe_gap]))
        else:
            panels.append(heat_map(f"heat-{i}", run.label, run.probe_step, run.probe_norm, scale, maps))
    return panels


def layer_maps(runs: Sequence[RunRecord]) -> list[tuple[int, Panel]]:
    """One panel for each layer and direction, with the number of the run, for runs that have several."""
    scale, maps = shared_scale(runs), _maps(runs)
    return [
        (i, heat_map(f"heat-{i}-{j}", f"{run.label}, {name}", run.probe_step, run.layer_norm[:, j], scale, maps))
        for i, run in enumerate(runs)
        if run.layer_norm is not None and run.probe_step is not None
        for j, name in enumerate(run.layers)
    ]


def _maps(runs: Sequence[RunRecord]) -> int:
    return len(runs) + sum(len(run.layers) for run in runs)


def heat_map(key: str, title: str, step: np.ndarray, norm: np.ndarray, scale: ColourScale | None, maps: int) -> Panel:
    """A map of gradient norms.

    Args:
        key, title: of the panel.
        step: updates of the probes ``(K,)``.
        norm: gradient norms ``(K, T)``.
        scale: the colour scale; None if there is nothing to draw.
        maps: number of maps on the page, which share the page's cells.
    """
    panel = Panel(key, title)
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
        f"The gradient {gradient_reach.sentence(norm[0])} at update {int(step[0]):,}, "
        f"and {gradient_reach.sentence(norm[-1])} at update {int(step[-1]):,}."
    )
    rows, columns = _blocks(norm, min(CELLS, PAGE_CELLS // max(1, maps)))
    shown = _downsample(norm, rows, columns, panel)
    edges = _edges(step)
    with plot(panel, "time step t", height=270) as current:
        axes = current.axes
        axes.grid(False)
        colours = colormaps[COLOURS].with_extremes(bad="#9a9a9a")
        with np.errstate(divide="ignore"):
            logs = np.where(shown == 0, scale.low - 1, np.log10(shown))
        extent = (0.5, norm.shape[1] + 0.5, edges[0], edges[-1])
        image = axes.imshow(
            np.ma.masked_invalid(_even_rows(logs, edges[rows])), cmap=colours, vmin=scale.low, vmax=scale.high,
            extent=extent, origin="lower", aspect="auto", interpolation="none",
        )  # fmt: skip
        _draw_reach(axes, norm, edges)
        count_axis(axes, "update", "y")
        axes.set_xlim(extent[:2])
        axes.set_ylim(extent[2:])
        bar = current.figure.colorbar(image, ax=axes, extend=scale.beyond, pad=0.02, fraction=0.06, aspect=18)
        if bar.solids is not None:
            bar.solids.set_rasterized(True)
        whole = np.arange(scale.low, scale.high + 1)
        whole = whole[:: max(1, int(np.ceil(len(whole) / 7)))]
        bar.set_ticks(list(whole), labels=[power(int(e)) for e in whole])
        bar.set_label("gradient norm", color=MUTED)
        bar.outline.set_linewidth(0.6)
        bar.outline.set_edgecolor(MUTED)
    steps = np.stack([columns[:-1] + 1, columns[1:]], 1)
    updates = np.stack([step[rows[:-1]], step[rows[1:] - 1]], 1)
    panel.hover = hover.cells(axes, shown, edges[rows], steps, updates)
    return panel


def _blocks(norm: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges of the groups of probes and of time steps that share a cell."""
    rows = groups(len(norm), max(min(ROWS, budget // 100), budget // norm.shape[1]))
    return rows, groups(norm.shape[1], budget // (len(rows) - 1))


def _downsample(norm: np.ndarray, rows: np.ndarray, columns: np.ndarray, panel: Panel) -> np.ndarray:
    """One norm for each cell; 0 or nan if the cell has such a value."""
    if len(rows) - 1 == len(norm) and len(columns) - 1 == norm.shape[1]:
        return np.where(np.isfinite(norm), norm, np.nan)
    panel.notes.append(
        f"{len(norm):,} probes by {norm.shape[1]:,} steps are drawn as {len(rows) - 1:,} by {len(columns) - 1:,} "
        "cells: each shows the one of its values that is furthest from the map's median."
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(np.isfinite(norm), np.where(norm == 0, -400.0, np.log10(norm)), np.nan)  # below all floats
    selected = outliers(logs, rows, columns)
    return np.where(selected == -400.0, 0.0, 10.0**selected)


def _even_rows(table: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The table as image rows of equal height: its own rows, or more of them if its rows have different heights."""
    heights = np.diff(edges)
    if np.allclose(heights, heights[0]):
        return table
    lines = min(4 * ROWS, max(2 * len(table), round(float(edges[-1] - edges[0]) / float(heights.min()))))
    middles = edges[0] + (np.arange(lines) + 0.5) / lines * (edges[-1] - edges[0])
    return table[np.clip(np.searchsorted(edges, middles, side="right") - 1, 0, len(table) - 1)]


def _draw_reach(axes: Axes, norm: np.ndarray, rows: np.ndarray) -> None:
    """A line where the gradient of each probe falls below a thousandth of its value at the last step."""
    reaches = [gradient_reach.measure(row) for row in norm]
    at = np.array([np.nan if r is None or r.complete else r.length - r.steps - 0.5 for r in reaches])
    if np.isfinite(at).any():
        x, y = np.repeat(at, 2), np.repeat(rows, 2)[1:-1]
        axes.plot(x, y, color="#000000", linewidth=3.2, alpha=0.55)
        axes.plot(x, y, color="#ffffff", linewidth=1.6)


def _logs(values: np.ndarray) -> np.ndarray:
    return np.log10(values[np.isfinite(values) & (values > 0)])


def _edges(step: np.ndarray) -> np.ndarray:
    """Edges half-way between probes, so that unevenly spaced probes have their true height."""
    if len(step) == 1:
        return np.array([step[0] - 0.5, step[0] + 0.5])
    middle = (step[1:] + step[:-1]) / 2
    return np.concatenate([[2 * step[0] - middle[0]], middle, [2 * step[-1] - middle[-1]]])


def _share(mask: np.ndarray) -> str:
    percent = 100 * mask.mean()
    return f"{number(percent, 2)} %" if percent >= 0.01 else "Fewer than 0.01 %"
