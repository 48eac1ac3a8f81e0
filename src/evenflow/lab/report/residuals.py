"""Predicted against true numbers, and their residuals, for each column that a model predicts."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from evenflow.lab.report.confusion import DIGITS
from evenflow.lab.report.numbers import number
from evenflow.lab.report.plotting import DASHED, Panel, Plot, plot
from evenflow.lab.report.run_answers import RunAnswers
from evenflow.lab.report.svg import MUTED, series_colour

MOST = 4  # columns that are drawn
AXIS_DIGITS = 4


def error_rows(answers: RunAnswers) -> list[list[str]]:
    """For each column its mean absolute error, root mean squared error and R² as text."""
    return [
        [column, number(mae), number(rmse), "–" if np.isnan(r2) else number(r2, DIGITS + 1)]
        for column, (mae, rmse, r2) in zip(answers.columns, answers.errors.tolist(), strict=True)
    ]


def residual_panels(key: str, answers: RunAnswers, colour: int = 0) -> list[Panel]:
    """Two panels for each of the first columns: predicted against true, and the residual against the predicted."""
    panels = []
    for place, column in enumerate(answers.columns[:MOST]):
        true, predicted = answers.pairs[:, 0, place], answers.pairs[:, 1, place]
        finite = np.isfinite(true) & np.isfinite(predicted)
        panels.append(_against_true(f"{key}-true-{place}", column, true[finite], predicted[finite], answers, colour))
        panels.append(_residuals(f"{key}-residual-{place}", column, true[finite], predicted[finite], answers, colour))
    return panels


def _against_true(
    key: str, column: str, true: np.ndarray, predicted: np.ndarray, answers: RunAnswers, colour: int
) -> Panel:
    panel = Panel(key, f"{column}: predicted against true")
    if not len(true):
        return panel
    panel.alt = (
        f"Predicted against true {column}, {len(true):,} points. True: {number(float(true.min()))} to "
        f"{number(float(true.max()))}; predicted: {number(float(predicted.min()))} to {number(float(predicted.max()))}."
    )
    _count(panel, len(true), answers)
    low, high = (float(end) for end in (min(true.min(), predicted.min()), max(true.max(), predicted.max())))
    margin = 0.04 * (high - low) or 0.04 * abs(high) or 1.0
    with plot(panel, None) as current:
        current.axes.plot([low - margin, high + margin], [low - margin, high + margin], color=MUTED, linestyle=DASHED)
        _points(current, true, predicted, colour)
        for axis, name in ((current.axes.xaxis, "true"), (current.axes.yaxis, "predicted")):
            _number_axis(axis, name)
        current.axes.set_xlim(low - margin, high + margin)
        current.axes.set_ylim(low - margin, high + margin)
    return panel


def _residuals(
    key: str, column: str, true: np.ndarray, predicted: np.ndarray, answers: RunAnswers, colour: int
) -> Panel:
    panel = Panel(key, f"{column}: residuals")
    if not len(true):
        return panel
    residual = true - predicted
    panel.alt = (
        f"Residual, true minus predicted {column}, against predicted, {len(true):,} points. Mean "
        f"{number(float(residual.mean()))}, from {number(float(residual.min()))} to {number(float(residual.max()))}."
    )
    _count(panel, len(true), answers)
    with plot(panel, None) as current:
        current.level(0.0)
        _points(current, predicted, residual, colour)
        _number_axis(current.axes.xaxis, "predicted")
        _number_axis(current.axes.yaxis, "true − predicted")
        most = 1.08 * float(abs(residual).max()) or 1.0
        current.axes.set_ylim(-most, most)
    return panel


def _points(current: Plot, x: np.ndarray, y: np.ndarray, colour: int) -> None:
    few = len(x) <= 200
    current.axes.plot(
        x, y, "o", color=series_colour(colour), markersize=5 if few else 3.2, alpha=0.7 if few else 0.45,
        markeredgewidth=0,
    )  # fmt: skip


def _number_axis(axis: object, name: str) -> None:
    axis.set_major_locator(MaxNLocator(5))  # type: ignore[attr-defined]
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value, AXIS_DIGITS)))  # type: ignore[attr-defined]
    axis.set_label_text(name)  # type: ignore[attr-defined]


def _count(panel: Panel, points: int, answers: RunAnswers) -> None:
    if points < answers.answers:
        panel.notes.append(f"{points:,} of {answers.answers:,} predictions, evenly spaced, are drawn.")
