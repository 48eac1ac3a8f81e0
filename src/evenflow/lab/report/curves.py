"""Plots of loss, metric and gradient norm against updates, one line per run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenflow.lab.report.downsample import extremes, means, points, running_mean
from evenflow.lab.report.numbers import number
from evenflow.lab.report.plotting import WIDE_RANGE, Panel, Plot, log_axis, plot
from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.report.seed_curves import MeanCurve, mean_curve
from evenflow.lab.report.svg import series_colour, series_variable

POINTS, FIGURE_POINTS = 400, 5_000  # most points of a line, finer than a screen shows, and of all lines of a figure
LARGEST = 1e30  # larger losses are left out: axes run out of floating point
OVERSHOOT = 3.0  # how far the first twentieth of a run may rise above the rest and still be shown in full
FEW = 40  # logged values that are all marked and not smoothed


def learning_panels(runs: Sequence[RunRecord]) -> list[Panel]:
    """All plots against updates."""
    panels = [train_loss(runs), valid_loss(runs)]
    if not all(run.metric_is_loss for run in runs):  # a plot of the metric would repeat that of the loss
        panels.append(valid_metric(runs))
    return [*panels, gradient_norm(runs)]


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
    panel = Panel(key, what[:1].upper() + what[1:], prints=True)
    lines: list[tuple[int, RunRecord, np.ndarray, np.ndarray]] = []
    bands: dict[int, MeanCurve] = {}
    for index, run in enumerate(runs):
        if len(run.seeds) == 1:
            curve = _drawable(run, run.label, column, what, panel)
        else:
            curve = _mean(run, column, what, panel, noisy)
            if curve is not None:
                bands[index] = curve
        if curve is not None:
            lines.append((index, run, curve.step, curve.mean))
    if not lines:
        return panel
    levels = sorted({r.baseline for r in runs if r.baseline is not None}) if baseline else []
    panel.alt = _alt(panel.title, lines, levels)
    with plot(panel, "update") as current:
        most = points(len(lines), POINTS, FIGURE_POINTS)
        for index, run, step, value in lines:
            shown = extremes(value, most)
            if index in bands:
                current.band(step, bands[index].low, bands[index].high, series_colour(index), 0.2)
            _line(current, index, step, value, shown, most // 2, noisy and index not in bands)
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


def _drawable(run: RunRecord, label: str, column: str, what: str, panel: Panel) -> MeanCurve | None:
    """The part of a curve that can be drawn, without a band; notes say what is left out."""
    step, value = run.curve(column, nan=True)
    finite = np.isfinite(value)
    drawn = finite & (np.abs(np.where(finite, value, 0)) <= LARGEST)
    if not len(value):
        panel.notes.append(f"{label} has no {what}.")
    elif not drawn.any():
        panel.notes.append(f"{label}: no {what} is a finite number under {number(LARGEST)}.")
    elif not finite.all():
        first = int(step[np.flatnonzero(~finite)[0]])
        panel.notes.append(f"{label}: the {what} stops being a finite number at update {first:,}.")
    elif not drawn.all():
        panel.notes.append(f"{label}: values over {number(LARGEST)} are left out.")
    value = value[drawn]
    return MeanCurve(step[drawn], value, value, value) if drawn.any() else None


def _mean(run: RunRecord, column: str, what: str, panel: Panel, noisy: bool) -> MeanCurve | None:
    """The mean over the seeds of a run; notes say which seeds are left out, and where the line ends."""
    curves = []
    for seed in run.seeds:
        curve = _drawable(seed, f"{run.label}, seed {seed.seed}", column, what, panel)
        # A curve with a part missing would make the mean jump.
        if curve is not None and len(curve.step) == len(seed.curve(column, nan=True)[0]):
            curves.append((curve.step, curve.mean))
    mean = mean_curve(curves, noisy) if curves else None
    if mean is None or not len(mean.step):
        panel.notes.append(f"{run.label}: there is no update at which its seeds have a {what}.")
        return None
    if len(curves) < len(run.seeds):
        panel.notes.append(f"{run.label}: the mean is that of {len(curves)} of {len(run.seeds)} seeds.")
    if mean.step[-1] < (last := max(int(step[-1]) for step, _ in curves)):
        panel.notes.append(f"{run.label}: drawn up to the end of its shortest seed; the longest goes on to {last:,}.")
    return mean


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
