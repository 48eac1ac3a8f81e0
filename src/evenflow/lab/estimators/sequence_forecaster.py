"""The forecaster of sequences."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.metrics import r2_score

from evenflow.checks import one_of, whole_number
from evenflow.lab.tasks.own_parts import steps_ahead
from evenflow.runtime.shared_arguments import with_shared_arguments

from .sequence_estimator import Learned
from .sequence_input import ragged, training_sequences, training_weights
from .trained_estimator import TrainedEstimator

STRATEGIES = ("recursive", "direct")


@with_shared_arguments
class SequenceForecaster(TrainedEstimator):
    """Predicts the steps after the end of each sequence, after training on the next steps of every step.

    Args:
        horizon: steps that `predict` forecasts.
        strategy: "recursive" learns the next step, and each forecast is read as the next step; "direct" learns all
            steps of the horizon at once.

    Attributes:
        predictor_: the trained model with the description of its data; `evenflow.save` writes it.
        n_iter_: epochs made.
        history_: losses and metrics by epoch, the columns of a run's metrics.csv.
        n_channels_in_: numbers at each step.

    >>> days = np.sin(np.arange(72) / 4 + np.random.default_rng(0).uniform(0, 6, (30, 1)))
    >>> forecaster = SequenceForecaster(24, epochs=5).fit(days[:, :48])
    >>> forecaster.predict(days[:, :48]).shape
    (30, 24)
    """

    def __init__(self, horizon: int = 1, *positional: Any, strategy: str = "recursive", **shared: Any) -> None:
        super().__init__(*positional, **shared)  # not **options, which is one of the arguments
        self.horizon = horizon
        self.strategy = strategy

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train on sequences, each of which holds its own targets.

        Args:
            X: ``(N, T)`` for one channel, ``(N, T, C)``, or a list of N arrays ``(T_n, C)`` or ``(T_n,)``.
            y: not read; pipelines and searches pass it.
            sample_weight: how much each sequence counts ``(N,)``; sequences of weight 0 are left out. Default: 1.
        """
        whole_number("horizon", self.horizon, 1)
        one_of("strategy", self.strategy, STRATEGIES)
        sequences = training_sequences(self, X)
        shortest = min(len(x) for x in sequences)
        if shortest < 2:
            raise ValueError(f"X must have sequences of at least two steps to forecast, got n_features = {shortest}")
        ahead = self.horizon if self.strategy == "direct" else 1
        if max(len(x) for x in sequences) <= ahead:
            raise ValueError(f"X must have a sequence of more than horizon = {ahead} steps for strategy direct")
        weights = training_weights(sample_weight, len(sequences))
        kept = np.flatnonzero(weights)
        inputs, targets = [sequences[row][:-1] for row in kept], [steps_ahead(sequences[row], ahead) for row in kept]
        self.predictor_ = self._train(Learned("next", inputs, targets, weights[kept], horizon=ahead))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The `horizon` steps after each sequence: ``(N, horizon)``, or ``(N, horizon, C)`` if steps are vectors."""
        predictor, x = self._predictor(X)
        return predictor.forecast(x, self.horizon)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R² of the forecasts, the best is 1.

        Args:
            X: sequences.
            y: the steps that follow them, with the shape of `predict`. Default: the last `horizon` steps of each
                sequence are forecast from those before.
            sample_weight: how much each sequence counts ``(N,)``. Default: 1.
        """
        if y is None:
            X, y = _divided(X, self.horizon)
        predicted = self.predict(X)
        true, predicted = np.reshape(y, (len(predicted), -1)), predicted.reshape(len(predicted), -1)
        return float(r2_score(true, predicted, sample_weight=sample_weight))


def _divided(x: Any, horizon: int) -> tuple[Any, np.ndarray]:
    """The sequences without their last steps, and these steps."""
    arrays = [np.asarray(each) for each in (x if ragged(x) else np.asarray(x))]
    if (shortest := min(len(each) for each in arrays)) <= horizon:
        raise ValueError(
            f"X must have sequences of more than horizon = {horizon} steps to be scored without y, got {shortest}"
        )
    return [each[:-horizon] for each in arrays], np.stack([each[-horizon:] for each in arrays])
