"""The lines of a recipe's figures: what is read off a run, against what, and the levels drawn beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .evidence import Evidence

Line = tuple[np.ndarray, np.ndarray]
NOTHING: Line = (np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class Curve:
    """One line for each run.

    Attributes:
        title: of its panel; where it says metric, the task's own name for it stands there.
        read: x and y of a run; empty where nothing was recorded.
        levels: numbers to draw across, dashed, such as the loss without memory; own: whether each row has its own.
        dashed: what those are, in words.
        log: whether the axis is logarithmic; None leaves it to the numbers.
        marks: whether published numbers are marked where the line ends.
        trained: whether only a trained model has one.
    """

    title: str
    along: str
    read: Callable[[Evidence], Line]
    levels: Callable[[Evidence], list[float]] = lambda _: []
    own: bool = False
    dashed: str = ""
    log: bool | None = None
    marks: bool = False
    trained: bool = True


def _column(name: str) -> Callable[[Evidence], Line]:
    return lambda e: e.curve(name)


def _baseline(e: Evidence) -> list[float]:
    """The loss without memory."""
    return [e.task.baseline]


def _gap(e: Evidence) -> Line:
    step, valid = e.curve("valid_loss")
    return step, valid - (np.interp(step, *e.curve("loss")) if len(step) else valid)


def _first_step(e: Evidence) -> Line:
    found = e.probed("gradient_norm")
    return NOTHING if found is None else (found[0], found[1][:, 0])


def _margin(e: Evidence) -> Line:
    found = e.probed("singular_values")
    return NOTHING if found is None else (found[0], np.abs(found[1][:, 0, 2:] - 1).max(1))


def _singular(which: int) -> Callable[[Evidence], Line]:
    """Of the first recurrent matrix: 0 mean, 2 smallest, 3 largest, as probes record them."""

    def read(e: Evidence) -> Line:
        found = e.probed("singular_values")
        return NOTHING if found is None else (found[0], found[1][:, 0, which])

    return read


def _reach(e: Evidence) -> Line:
    """By the last probe, of its largest; the probe counts back from the last step."""
    found = e.probed("jacobian_norm")
    if found is None:
        return NOTHING
    norms = found[1][-1, ::-1].astype(np.float64)
    return _counted(norms / max(norms.max(), np.finfo(np.float64).tiny))


def _counted(values: np.ndarray) -> Line:
    return np.arange(1, len(values) + 1), values


GUESS, ONE = "the best guess without memory", "1, a matrix that keeps lengths"

CURVES: dict[str, Curve] = {
    "metric": Curve("Validation metric", "update", _column("valid_metric"), marks=True),
    "loss": Curve("Validation loss", "update", _column("valid_loss"), _baseline, dashed=GUESS),
    "train-loss": Curve("Training loss", "update", _column("loss"), _baseline, dashed=GUESS),
    "gap": Curve("Validation minus training loss", "update", _gap, log=False),
    "first-step": Curve("Gradient at the first step, |∂L/∂h₁|", "update", _first_step),
    "margin": Curve("Spectral margin, max |σ − 1|", "update", _margin),
    "mean": Curve("Mean singular value", "update", _singular(0), lambda _: [1.0], dashed=ONE),
    "smallest": Curve("Smallest singular value", "update", _singular(2), lambda _: [1.0], dashed=ONE),
    "largest": Curve("Largest singular value", "update", _singular(3), lambda _: [1.0], dashed=ONE),
    "reach": Curve("‖∂h_T/∂h_t‖ of its largest, after training", "time step t", _reach, log=True),
    "components": Curve(
        "Norm of the temporal components",
        "time step t",
        lambda e: _counted(e.temporal_norms),
        log=True,
        trained=False,
    ),
    "jacobian": Curve(
        "‖∂h_T/∂h₁‖, sequence by sequence",
        "sequence",
        lambda e: _counted(e.jacobian_norms),
        lambda e: list(e.band or ()),
        own=True,
        dashed="the bounds that Theorem 1 allows",
    ),
}
