"""Forecasts of chaotic series: the Mackey-Glass equation and one coordinate of the Lorenz system."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .data_set import HOST, PARTS, DataSet
from .task import Batch, option

SOLVED_SHARE = 0.1  # of the loss without memory
SERIES = {"training": 64, "validation": 16, "test": 16}
SAMPLES = 2000  # of a series, after the transient
TRANSIENT = 200
STRIDE = 10  # samples between the beginnings of two sequences of one series
BINS = 200  # of the current value, for the loss without memory
Slope = Callable[[np.ndarray, int], np.ndarray]


@dataclass(frozen=True)
class Forecast(DataSet):
    """Output at every step the value of a series `horizon` samples ahead, from its values so far.

    Series from random initial values are integrated once, 64 for training and 16 each for validation and the test; a
    sequence is a piece of one of them. The values of all parts are scaled by mean and deviation of the training series.
    Loss and metric: mean squared error, in variances of the series. Without memory the best output is the mean of the
    future over all times with the present value; its error, found by parting the training values into 200 bins, is the
    loss without memory, and a tenth of it counts as solved.

    Shapes:
        inputs ``(T, B, 1)``; targets ``(T, B, 1)``.
    """

    length: int = option(200, "steps T of one sequence", whole=2)
    horizon: int = option(15, "how many samples ahead the forecast is", whole=1)

    readout = "every"
    metric_name = "mse"
    higher_is_better = False
    limit_excluded = True
    input_size = 1
    output_size = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length + self.horizon > SAMPLES:
            raise ValueError(
                f"length and horizon must be at most {SAMPLES} together, the samples of a series, got {self.length} "
                f"and {self.horizon}"
            )

    @abstractmethod
    def integrate(self, count: int, seed: int) -> np.ndarray:
        """Series ``(SAMPLES, count)`` from random initial values."""

    def scaled(self) -> np.ndarray:
        """The series ``(SAMPLES, N)`` of this part, scaled as those for training."""
        train = _series(self.in_part("training"))
        series = train if self.part == "training" else _series(self)
        return (series - train.mean()) / train.std()

    @property
    def _starts(self) -> int:
        """The number of sequences in one series."""
        return (SAMPLES - self.length - self.horizon) // STRIDE + 1

    def count(self) -> int:
        return SERIES[self.part] * self._starts

    def take(self, rows: Tensor) -> Batch:
        series = _tensor(self, rows.device)
        first = rows % self._starts * STRIDE
        times = first + torch.arange(self.length, device=rows.device).unsqueeze(1)
        number = (rows // self._starts).expand_as(times)
        return Batch(series[times, number].unsqueeze(-1), series[times + self.horizon, number].unsqueeze(-1))

    @property
    def baseline(self) -> float:
        return _without_memory(self.in_part("training"))

    @property
    def solved_limit(self) -> float:
        return SOLVED_SHARE * self.baseline

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets)


@dataclass(frozen=True)
class MackeyGlass(Forecast):
    """Forecast the Mackey-Glass series ``x' = 0.2 x(t - 17) / (1 + x(t - 17)^10) - 0.1 x``, one sample a unit of time.

    See `Forecast` for the series, the shapes and what counts as solved. The current value alone leaves most of the
    future open: the equation reads the value of 17 units ago.

    Args:
        length: T.
        horizon: the samples ahead. Default: 15.

        >>> MackeyGlass().batch(4, torch.Generator().manual_seed(0)).inputs.shape
        torch.Size([200, 4, 1])

    Reference: Mackey and Glass 1977.
    """

    name = "mackey-glass"

    def integrate(self, count: int, seed: int) -> np.ndarray:
        parts, delay = 4, 17  # steps of integration in a unit of time
        lag, dt = delay * parts, 1 / parts
        x = np.empty(((SAMPLES + TRANSIENT) * parts + lag + 1, count))
        x[: lag + 1] = 1.2 + 0.2 * (np.random.RandomState(seed).random_sample((lag + 1, count)) - 0.5)
        for t in range(lag, len(x) - 1):
            before, after = x[t - lag], x[t - lag + 1]
            ends = [0.2 * past / (1 + past**10) for past in (before, (before + after) / 2, after)]
            x[t + 1] = runge_kutta(partial(_decay, ends), x[t], dt)
        return x[lag + 1 :: parts][TRANSIENT : TRANSIENT + SAMPLES]


@dataclass(frozen=True)
class Lorenz(Forecast):
    """Forecast the first coordinate of the Lorenz system, which alone is seen, 50 samples a unit of time.

    ``x' = 10 (y - x)``, ``y' = x (28 - z) - y``, ``z' = x y - 8/3 z``. See `Forecast` for the series, the shapes and
    what counts as solved. y and z have to be inferred from the past of x.

    Args:
        length: T.
        horizon: the samples ahead. Default: 15, a third of the time in which errors grow by a factor e.

        >>> Lorenz().batch(4, torch.Generator().manual_seed(0)).inputs.shape
        torch.Size([200, 4, 1])

    Reference: Lorenz 1963.
    """

    name = "lorenz"

    def integrate(self, count: int, seed: int) -> np.ndarray:
        parts, dt = 2, 0.01
        state = np.random.RandomState(seed).randn(3, count) * 5 + np.array([[0.0], [0.0], [25.0]])
        seen = np.empty((SAMPLES + TRANSIENT, count))
        for t in range(len(seen)):
            for _ in range(parts):
                state = runge_kutta(_lorenz, state, dt)
            seen[t] = state[0]
        return seen[TRANSIENT:]


def runge_kutta(slope: Slope, x: np.ndarray, dt: float) -> np.ndarray:
    """The classical step of fourth order; `slope` takes the value and the time in halves of the step."""
    k1 = slope(x, 0)
    k2 = slope(x + dt / 2 * k1, 1)
    k3 = slope(x + dt / 2 * k2, 1)
    k4 = slope(x + dt * k3, 2)
    return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def _decay(pushes: Sequence[np.ndarray], x: np.ndarray, half: int) -> np.ndarray:
    """The slope of the Mackey-Glass equation, whose delayed terms are known."""
    return pushes[half] - 0.1 * x


def _lorenz(state: np.ndarray, half: int) -> np.ndarray:
    x, y, z = state
    return np.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])


def _series(task: Forecast) -> np.ndarray:
    return _integrated(type(task), task.part)


@lru_cache(maxsize=6)
def _integrated(kind: type[Forecast], part: str) -> np.ndarray:
    return kind().integrate(SERIES[part], PARTS.index(part))


@lru_cache(maxsize=6)
def _tensor(task: Forecast, device: torch.device) -> Tensor:
    if device != HOST:
        return _tensor(task, HOST).to(device)
    return torch.from_numpy(task.scaled().astype(np.float32))


@lru_cache(maxsize=4)
def _without_memory(task: Forecast) -> float:
    """The variance of the future that the present value leaves open, in bins of equally many values."""
    series = task.scaled()
    present, future = series[: -task.horizon].ravel(), series[task.horizon :].ravel()
    bins = np.array_split(future[np.argsort(present, kind="stable")], BINS)
    return float(sum(values.var() * len(values) for values in bins) / len(future))
