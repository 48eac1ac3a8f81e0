"""The mean of a curve over seeds, with one standard error to either side."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenflow.lab.report.downsample import running_mean

SMOOTHED = 40  # values from which a noisy curve is smoothed before the mean is taken


@dataclass(frozen=True)
class MeanCurve:
    """Steps, the mean over seeds, and one standard error below and above it; all ``(N,)``."""

    step: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_curve(curves: Sequence[tuple[np.ndarray, np.ndarray]], noisy: bool = False) -> MeanCurve:
    """The mean of the curves ``(steps, values)`` at the steps that all of them have.

    With `noisy` each curve is replaced by its running mean before, so that the band shows how seeds differ and not how
    a single batch does. If all values are above zero, so is the band, as a logarithmic axis needs.
    """
    if noisy:
        curves = [
            (step, running_mean(value, max(5, len(value) // 20)) if len(value) > SMOOTHED else value)
            for step, value in curves
        ]
    step = functools.reduce(np.intersect1d, [step for step, _ in curves])
    values = np.stack([value[np.searchsorted(own, step)] for own, value in curves])
    mean = values.mean(0)
    error = values.std(0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else np.zeros_like(mean)
    low = mean - error
    return MeanCurve(step, mean, np.maximum(low, values.min(0)) if (values > 0).all() else low, mean + error)
