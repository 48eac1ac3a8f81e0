"""The classifier of sequences."""

from __future__ import annotations

from evenflow.runtime.shared_arguments import with_shared_arguments

from .sequence_estimator import Classifies
from .trained_estimator import TrainedEstimator


@with_shared_arguments
class SequenceClassifier(Classifies, TrainedEstimator):
    """Gives each sequence one of several classes, by a recurrent network that is trained on cross entropy.

    Args:
        others: as in `TrainedEstimator`.

    Attributes:
        classes_: the classes.
        predictor_: the trained model with the description of its data; `evenflow.save` writes it.
        n_iter_: epochs made.
        history_: losses and metrics by epoch, the columns of a run's metrics.csv.
        n_channels_in_: numbers at each step.

    >>> classifier = SequenceClassifier("gru", 16, epochs=5, random_state=0).fit(windows, activities)
    >>> windows.shape, classifier.predict_proba(windows).shape
    ((30, 20, 2), (30, 2))
    """
