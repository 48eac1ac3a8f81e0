"""The curves of a recipe's figures: which line a run draws, its axes, and the levels drawn beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .run_data import FigureLine, RunData
from .schema import Column

Points = tuple[np.ndarray, np.ndarray]
NO_POINTS: Points = (np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class Curve:
    """One line for each run.

    Attributes:
        title: title of the plot; the word "metric" is replaced by the task's name for it.
        across: label of the x axis.
        read: x and y of a run; empty if nothing was recorded.
        levels: values drawn as dashed horizontal lines, such as the loss without memory.
        per_row: whether each row has levels of its own.
        dashed: what the levels are, in words.
        log: whether the y axis is logarithmic. None: decided by the range of the values.
        marks: whether the published value is marked at the end of the line.
        trained: whether only a trained model has a line.
    """

    title: str
    across: str
    read: Callable[[RunData], Points]
    levels: Callable[[RunData], list[float]] = lambda _: []
    per_row: bool = False
    dashed: str = ""
    log: bool | None = None
    marks: bool = False
    trained: bool = True


def read_line(run: RunData, kind: str) -> FigureLine:
    """The line of a run in the figure `kind`: from its record if it has one, else from the run folder."""
    if run.lines is not None:
        return run.lines.get(kind, FigureLine(*NO_POINTS, []))
    curve = CURVES[kind]
    return FigureLine(*curve.read(run), curve.levels(run))


def shown_by_metric(column: Column) -> bool:
    """Whether the curve of the metric shows the column."""
    return column.measure in ("best_metric", "test_metric", "final_metric")


def _column(name: str) -> Callable[[RunData], Points]:
    return lambda run: run.curve(name)


def _probe(name: str, select: Callable[[np.ndarray], np.ndarray]) -> Callable[[RunData], Points]:
    """A number of every probe, against updates."""

    def read(run: RunData) -> Points:
        probes = run.probe(name)
        return NO_POINTS if probes is None else (probes[0], select(probes[1]))

    return read


def _singular(which: int) -> Callable[[RunData], Points]:
    """Singular values of the first recurrent matrix: 0 mean, 2 smallest, 3 largest."""
    return _probe("singular_values", lambda values: values[:, 0, which])


def _gap(run: RunData) -> Points:
    step, valid = run.curve("valid_loss")
    return step, valid - (np.interp(step, *run.curve("loss")) if len(step) else valid)


def _reach(run: RunData) -> Points:
    """The Jacobian norms of the last probe, divided by the largest; the probe counts back from the last step."""
    probes = run.probe("jacobian_norm")
    if probes is None:
        return NO_POINTS
    norms = probes[1][-1, ::-1].astype(np.float64)
    return _numbered(norms / max(norms.max(), np.finfo(np.float64).tiny))


def _numbered(values: np.ndarray) -> Points:
    return np.arange(1, len(values) + 1), values


def _baseline(run: RunData) -> list[float]:
    """The loss of the best guess without memory."""
    return [run.task.baseline]


def _one(_: RunData) -> list[float]:
    return [1.0]


GUESS, ONE = "the best guess without memory", "1, a matrix that keeps lengths"

CURVES: dict[str, Curve] = {
    "metric": Curve("Validation metric", "update", _column("valid_metric"), marks=True),
    "loss": Curve("Validation loss", "update", _column("valid_loss"), _baseline, dashed=GUESS),
    "train-loss": Curve("Training loss", "update", _column("loss"), _baseline, dashed=GUESS),
    "gap": Curve("Validation minus training loss", "update", _gap, log=False),
    "first-step": Curve(
        "Gradient at the first step, |∂L/∂h₁|", "update", _probe("gradient_norm", lambda norms: norms[:, 0])
    ),
    "margin": Curve(
        "Spectral margin, max |σ − 1|",
        "update",
        _probe("singular_values", lambda values: np.abs(values[:, 0, 2:] - 1).max(1)),
    ),
    "mean": Curve("Mean singular value", "update", _singular(0), _one, dashed=ONE),
    "smallest": Curve("Smallest singular value", "update", _singular(2), _one, dashed=ONE),
    "largest": Curve("Largest singular value", "update", _singular(3), _one, dashed=ONE),
    "reach": Curve("‖∂h_T/∂h_t‖ of its largest, after training", "time step t", _reach, log=True),
    "components": Curve(
        "Norm of the temporal components",
        "time step t",
        lambda run: _numbered(run.component_norms),
        log=True,
        trained=False,
    ),
    "jacobian": Curve(
        "‖∂h_T/∂h₁‖, sequence by sequence",
        "sequence",
        lambda run: _numbered(run.jacobian_norms),
        lambda run: run.jacobian_bounds,
        per_row=True,
        dashed="the bounds that Theorem 1 allows",
    ),
}
FIGURE_NAMES = (*CURVES, "heat", "spectrum", "lines", "dots")
