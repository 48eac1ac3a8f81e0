"""scikit-learn estimators; their public names are in `evenflow.sklearn`."""

from .echo_state_estimators import EchoStateClassifier, EchoStateRegressor
from .sequence_classifier import SequenceClassifier
from .sequence_forecaster import SequenceForecaster
from .sequence_regressor import SequenceRegressor

__all__ = [
    "EchoStateClassifier",
    "EchoStateRegressor",
    "SequenceClassifier",
    "SequenceForecaster",
    "SequenceRegressor",
]
