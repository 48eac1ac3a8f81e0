"""The regressor of sequences."""

from __future__ import annotations

from evenflow.runtime.shared_arguments import with_shared_arguments

from .sequence_estimator import Regresses
from .trained_estimator import TrainedEstimator


@with_shared_arguments
class SequenceRegressor(Regresses, TrainedEstimator):
    """Gives each sequence a number, or several, by a recurrent network that is trained on squared errors.

    Args:
        others: as in `TrainedEstimator`.

    Attributes:
        predictor_: the trained model with the description of its data; `evenflow.save` writes it.
        n_iter_: epochs made.
        history_: losses and metrics by epoch, the columns of a run's metrics.csv.
        n_channels_in_: numbers at each step.

    >>> regressor = SequenceRegressor("gru", 16, epochs=5, random_state=0).fit(windows, ages)
    >>> windows.shape, regressor.predict(windows).shape
    ((30, 20, 2), (30,))
    """
