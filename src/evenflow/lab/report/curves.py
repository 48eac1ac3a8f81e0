"""Loss and metric against updates, one line per run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from evenflow.lab.report import hover
from evenflow.lab.report.numbers import number
from evenflow.lab.report.record import Record
from evenflow.lab.report.svg import (
    MUTED,
    Panel,
    count_axis,
    drawing,
    inline,
    log_axis,
    series_colour,
    series_marker,
    series_name,
)
from evenflow.lab.report.thinning import extremes, means, points, running_mean

POINTS, FIGURE_POINTS = 400, 5_000  # of a line, finer than a screen shows, and of all lines of a figure
LARGEST = 1e30  # beyond it a loss tells nothing more, and axes run out of floating point
OVERSHOOT = 3.0  # how far the first twentieth of a run may rise over the rest and still be shown in full
WIDE_RANGE = 20.0  # largest over smallest value from which a log axis reads better


def train_loss(runs: Sequence[Record]) -> Panel:
    """Training loss: every update faint, their running mean in full colour, the memoryless baseline dashed."""
    return _panel("train-loss", "Training loss", "training loss", runs, [r.curve("loss") for r in runs], noisy=True)


def valid_loss(runs: Sequence[Record]) -> Panel:
    """Validation loss, on sequences the run did not train on, with the memoryless baseline dashed."""
    return _panel("valid-loss", "Validation loss", "validation loss", runs, [r.curve("valid_loss") for r in runs])


def valid_metric(runs: Sequence[Record]) -> Panel:
    """Validation metric, named as the task names it; runs of tasks with other metrics share the axis.

    Where more is better the metric is a share of right answers, and what counts is at its top: no log axis there.
    """
    names = sorted({r.metric_name for r in runs})
    share = any(r.task is not None and r.task.higher_is_better for r in runs)
    return _panel(
        "valid-metric", f"Validation {' / '.join(names)}", f"validation {' / '.join(names)}", runs,
        [r.curve("valid_metric") for r in runs], baseline=False, linear=share,
    )  # fmt: skip


def gradient_norm(runs: Sequence[Record]) -> Panel:
    """Norm of the gradient by all weights, before clipping, as logged and as a running mean."""
    return _panel(
        "gradient-norm", "Gradient norm", "gradient norm", runs, [r.curve("gradient_norm") for r in runs], noisy=True,
        baseline=False,
    )  # fmt: skip


def _panel(
    key: str,
    title: str,
    what: str,
    runs: Sequence[Record],
    lines: Sequence[tuple[np.ndarray, np.ndarray]],
    noisy: bool = False,
    baseline: bool = True,
    linear: bool = False,
) -> Panel:
    panel = Panel(key, title)
    kept = []
    for index, (run, (step, value)) in enumerate(zip(runs, lines, strict=True)):
        finite = np.isfinite(value)
        drawn = finite & (np.abs(np.where(finite, value, 0)) <= LARGEST)
        if drawn.any():
            kept.append((index, run, step[drawn], value[drawn]))
        if not len(value):
            panel.notes.append(f"{run.label} has no {what}.")
        elif not drawn.any():
            panel.notes.append(f"{run.label}: no {what} is a finite number under {number(LARGEST)}.")
        elif not finite.all():
            first = int(step[np.flatnonzero(~finite)[0]])
            panel.notes.append(f"{run.label}: the {what} stops being a finite number at update {first:,}.")
        elif not drawn.all():
            panel.notes.append(f"{run.label}: values over {number(LARGEST)} are left out.")
    if not kept:
        return panel
    levels = sorted({r.baseline for r in runs if r.baseline is not None}) if baseline else []
    panel.alt = _alt(title, kept, levels)
    with drawing() as figure:
        axes = figure.add_subplot()
        series, most = [], points(len(kept), POINTS, FIGURE_POINTS)
        for index, run, step, value in kept:
            shown = extremes(value, most)
            _line(axes, index, step, value, shown, most // 2, noisy)
            series.append(hover.Series(run.label, series_name(index), step[shown], value[shown]))
        for level in levels:
            axes.axhline(level, color=MUTED, linestyle=(0, (5, 4)), linewidth=1.4, zorder=1.5)
        values = np.concatenate([value for *_, value in kept] + [np.array(levels)])
        low, high = float(values.min()), float(values.max())
        # A start far above all that follows would press the rest of the plot flat.
        settled = max([float(value[len(value) // 20 :].max()) for *_, value in kept] + levels)
        if 0 < OVERSHOOT * settled < high:
            panel.notes.append(f"Values of the first updates, up to {number(high)}, lie above the plot.")
            high = settled
        if not linear and low > 0 and high / low > WIDE_RANGE:
            log_axis(axes, low / 1.25, high * 1.25)
        elif high < values.max():
            margin = 0.05 * max(high - low, abs(high))
            axes.set_ylim(low - margin, high + margin)
        count_axis(axes, "update")
        last = max(run.updates for run in runs)
        axes.set_xlim(-0.02 * last, 1.02 * last)
        panel.svg = inline(figure, key, panel.alt)
        panel.hover = hover.lines(axes, "update", series)
    return panel


def _line(
    axes: Axes, index: int, step: np.ndarray, value: np.ndarray, shown: np.ndarray, groups: int, noisy: bool
) -> None:
    colour = series_colour(index)
    few = len(value) <= 40
    if noisy and not few:
        axes.plot(step[shown], value[shown], color=colour, linewidth=1, alpha=0.35)
        step, value = means(step, value, groups)
        value = running_mean(value, max(5, len(value) // 20))
    else:
        step, value = step[shown], value[shown]
    every = 1 if few else max(1, len(value) // 8)
    axes.plot(step, value, color=colour, marker=series_marker(index), markevery=every, markersize=5, zorder=2.5)


def _alt(title: str, kept: list[tuple[int, Record, np.ndarray, np.ndarray]], levels: list[float]) -> str:
    parts = [
        f"{run.label}: {number(value[0])} at update {int(step[0]):,}, {number(value[-1])} at update {int(step[-1]):,}"
        for _, run, step, value in kept
    ]
    dashed = f" Dashed: the memoryless baseline at {number(levels[-1])}." if levels else ""
    return f"Line plot of {title.lower()} against updates. " + "; ".join(parts) + "." + dashed
