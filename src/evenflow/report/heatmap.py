"""Gradient norm ‖∂L/∂h_t‖ over time steps × training: one heat map per run, one colour scale for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from evenflow.report import reach
from evenflow.report.numbers import number, power
from evenflow.report.record import Record
from evenflow.report.svg import MUTED, Panel, count_axis, drawing, inline, log_axis, series_colour, series_marker

BELOW, ABOVE = 8.0, 4.0  # decades shown around the usual gradient at the last step
COLOURS = "viridis"
CELLS = 600  # columns of a mesh: more than a screen shows of one map


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
    everything = _logs(np.concatenate([n.ravel() for n in norms])) if norms else np.array([])
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
    scale = shared_scale(runs)
    return [_heat_map(index, run, scale) for index, run in enumerate(runs)]


def _heat_map(index: int, run: Record, scale: Scale | None) -> Panel:
    panel = Panel(f"heat-{index}", run.label)
    norm, step = run.probe_norm, run.probe_step
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
        f"Heat map of the gradient norm of {run.label}, {len(step)} probes by {norm.shape[1]} time steps. "
        f"The gradient {reach.sentence(norm[0])} at update {int(step[0]):,}, "
        f"and {reach.sentence(norm[-1])} at update {int(step[-1]):,}."
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(bad, np.nan, np.where(zero, scale.low - 1, np.log10(norm)))
    with drawing(480, 270) as figure:
        axes = figure.add_subplot()
        axes.grid(False)
        shown, edges = _columns(logs)
        rows = _edges(step)
        colours = colormaps[COLOURS].with_extremes(bad="#9a9a9a")
        mesh = axes.pcolormesh(
            edges, rows, np.ma.masked_invalid(shown), cmap=colours, vmin=scale.low, vmax=scale.high, rasterized=True
        )
        _draw_reach(axes, norm, rows)
        count_axis(axes, "time step t")
        count_axis(axes, "update", "y")
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(rows[0], rows[-1])
        bar = figure.colorbar(mesh, ax=axes, extend=scale.beyond, pad=0.02, fraction=0.06, aspect=18)
        if bar.solids is not None:
            bar.solids.set_rasterized(True)
        whole = np.arange(scale.low, scale.high + 1)
        whole = whole[:: max(1, int(np.ceil(len(whole) / 7)))]
        bar.set_ticks(list(whole), labels=[power(int(e)) for e in whole])
        bar.set_label("gradient norm", color=MUTED)
        bar.outline.set_linewidth(0.6)
        bar.outline.set_edgecolor(MUTED)
        panel.svg = inline(figure, panel.key, panel.alt)
    return panel


def _draw_reach(axes: Axes, norm: np.ndarray, rows: np.ndarray) -> None:
    """A line where the gradient of each probe falls under a thousandth of its last-step value, if it does."""
    found = [reach.measure(row) for row in norm]
    at = np.array([np.nan if r is None or r.complete else r.length - r.steps - 0.5 for r in found])
    if np.isfinite(at).any():
        x, y = np.repeat(at, 2), np.repeat(rows, 2)[1:-1]
        axes.plot(x, y, color="#000000", linewidth=3.2, alpha=0.55)
        axes.plot(x, y, color="#ffffff", linewidth=1.6)


def profiles(runs: Sequence[Record]) -> list[Panel]:
    """Gradient norm against time steps, all runs in one plot: at the first probe and at the last."""
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
    parts = []
    with drawing(480, 300) as figure:
        axes = figure.add_subplot()
        for index, run in enumerate(runs):
            if run.probe_norm is None or run.probe_step is None:
                panel.notes.append(f"{run.label} has no probes.")
                continue
            row = run.probe_norm[which]
            parts.append(f"the gradient of {run.label} {reach.sentence(row)}")
            drawn = np.where(np.isfinite(row) & (row > 0), row, np.nan)
            if not np.isfinite(drawn).any():
                panel.notes.append(f"{run.label} has no finite gradient above zero at this probe.")
                continue
            time = np.arange(1, len(row) + 1)
            keep = np.unique(np.linspace(0, len(row) - 1, min(len(row), CELLS)).astype(int))
            axes.plot(
                time[keep], drawn[keep], color=series_colour(index), marker=series_marker(index), markersize=5,
                markevery=max(1, len(keep) // 8),
            )  # fmt: skip
        log_axis(axes, 10 ** (scale.low - 0.3), 10 ** (scale.high + 0.3), powers=True)
        count_axis(axes, "time step t")
        axes.set_xlim(1, max(2, *(r.probe_norm.shape[1] for r in runs if r.probe_norm is not None)))
        panel.alt = f"Line plot of the gradient norm against time steps. {title}: " + "; ".join(parts) + "."
        panel.svg = inline(figure, key, panel.alt)
    return panel


def _logs(values: np.ndarray) -> np.ndarray:
    return np.log10(values[np.isfinite(values) & (values > 0)])


def _columns(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most CELLS columns, by means of neighbours, and their edges on the time axis."""
    steps = logs.shape[1]
    groups = np.unique(np.linspace(0, steps, min(steps, CELLS) + 1).astype(int))
    means = np.add.reduceat(logs, groups[:-1], axis=1) / np.diff(groups)
    return means, groups + 0.5


def _edges(step: np.ndarray) -> np.ndarray:
    """Borders half-way between probes, so that unevenly spaced probes keep their true height."""
    if len(step) == 1:
        return np.array([step[0] - 0.5, step[0] + 0.5])
    middle = (step[1:] + step[:-1]) / 2
    return np.concatenate([[step[0]], middle, [step[-1]]])


def _share(mask: np.ndarray) -> str:
    percent = 100 * mask.mean()
    return f"{number(percent, 2)} %" if percent >= 0.01 else "Fewer than 0.01 %"
