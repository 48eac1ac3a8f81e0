"""Plots of loss, metric and gradient norm against updates, one line per run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenflow.lab.report.downsample import extremes, means, points, running_mean
from evenflow.lab.report.numbers import number
from evenflow.lab.report.plotting import WIDE_RANGE, Panel, Plot, log_axis, plot
from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.report.svg import series_variable

POINTS, FIGURE_POINTS = 400, 5_000  # most points of a line, finer than a screen shows, and of all lines of a figure
LARGEST = 1e30  # larger losses are left out: axes run out of floating point
OVERSHOOT = 3.0  # how far the first twentieth of a run may rise above the rest and still be shown in full
FEW = 40  # logged values that are all marked and not smoothed


def train_loss(runs: Sequence[RunRecord]) -> Panel:
    """Training loss: every logged value faint, the running mean in full colour, the memoryless baseline dashed."""
    return _panel("train-loss", "loss", "training loss", runs, noisy=True)


def valid_loss(runs: Sequence[RunRecord]) -> Panel:
    """Validation loss, with the memoryless baseline dashed."""
    return _panel("valid-loss", "valid_loss", "validation loss", runs)


def valid_metric(runs: Sequence[RunRecord]) -> Panel:
    """Validation metric, named as the task names it; runs of tasks with different metrics share the axis.

    If higher is better, the metric is a share of right answers: a log axis would squeeze the part near 1.
    """
    name = f"validation {' / '.join(sorted({r.metric_name for r in runs}))}"
    share = any(r.task is not None and r.task.higher_is_better for r in runs)
    return _panel("valid-metric", "valid_metric", name, runs, baseline=False, linear=share)


def gradient_norm(runs: Sequence[RunRecord]) -> Panel:
    """Norm of the gradient of all weights, before clipping, as logged and as a running mean."""
    return _panel("gradient-norm", "gradient_norm", "gradient norm", runs, noisy=True, baseline=False)


def _panel(
    key: str,
    column: str,
    what: str,
    runs: Sequence[RunRecord],
    *,
    noisy: bool = False,
    baseline: bool = True,
    linear: bool = False,
) -> Panel:
    panel = Panel(key, what[:1].upper() + what[1:])
    lines = []
    for index, run in enumerate(runs):
        step, value = run.curve(column, nan=True)
        finite = np.isfinite(value)
        drawn = finite & (np.abs(np.where(finite, value, 0)) <= LARGEST)
        if drawn.any():
            lines.append((index, run, step[drawn], value[drawn]))
        if not len(value):
            panel.notes.append(f"{run.label} has no {what}.")
        elif not drawn.any():
            panel.notes.append(f"{run.label}: no {what} is a finite number under {number(LARGEST)}.")
        elif not finite.all():
            first = int(step[np.flatnonzero(~finite)[0]])
            panel.notes.append(f"{run.label}: the {what} stops being a finite number at update {first:,}.")
        elif not drawn.all():
            panel.notes.append(f"{run.label}: values over {number(LARGEST)} are left out.")
    if not lines:
        return panel
    levels = sorted({r.baseline for r in runs if r.baseline is not None}) if baseline else []
    panel.alt = _alt(panel.title, lines, levels)
    with plot(panel, "update") as current:
        most = points(len(lines), POINTS, FIGURE_POINTS)
        for index, run, step, value in lines:
            shown = extremes(value, most)
            _line(current, index, step, value, shown, most // 2, noisy)
            current.read_out(run.label, series_variable(index), step[shown], value[shown])
        for level in levels:
            current.level(level, width=1.4, zorder=1.5)
        values = np.concatenate([value for *_, value in lines] + [np.array(levels)])
        low, high = float(values.min()), float(values.max())
        # A start far above the rest would flatten the plot.
        settled = max([float(value[len(value) // 20 :].max()) for *_, value in lines] + levels)
        if 0 < OVERSHOOT * settled < high:
            panel.notes.append(f"Values of the first updates, up to {number(high)}, lie above the plot.")
            high = settled
        if not linear and low > 0 and high / low > WIDE_RANGE:
            log_axis(current.axes, low / 1.25, high * 1.25)
        elif high < values.max():
            margin = 0.05 * max(high - low, abs(high))
            current.axes.set_ylim(low - margin, high + margin)
        last = max(run.updates for run in runs)
        current.axes.set_xlim(-0.02 * last, 1.02 * last)
    return panel


def _line(
    current: Plot, index: int, step: np.ndarray, value: np.ndarray, shown: np.ndarray, groups: int, noisy: bool
) -> None:
    few = len(value) <= FEW
    if noisy and not few:
        current.line(index, step[shown], value[shown], markers=False, linewidth=1, alpha=0.35)
        step, value = means(step, value, groups)
        value = running_mean(value, max(5, len(value) // 20))
    else:
        step, value = step[shown], value[shown]
    current.line(index, step, value, every=1 if few else 0, zorder=2.5)


def _alt(title: str, lines: list[tuple[int, RunRecord, np.ndarray, np.ndarray]], levels: list[float]) -> str:
    parts = [
        f"{run.label}: {number(value[0])} at update {int(step[0]):,}, {number(value[-1])} at update {int(step[-1]):,}"
        for _, run, step, value in lines
    ]
    dashed = f" Dashed: the memoryless baseline at {number(levels[-1])}." if levels else ""
    return f"Line plot of {title.lower()} against updates. " + "; ".join(parts) + "." + dashed
