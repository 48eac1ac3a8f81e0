"""scikit-learn estimators: sequences in, classes, numbers or forecasts out. They need the extra ``sklearn``.

>>> from evenflow.sklearn import SequenceClassifier
>>> SequenceClassifier("sgornn", 64).fit(windows, activities).predict(windows)
"""

try:
    from evenflow.lab.estimators import (
        EchoStateClassifier,
        EchoStateRegressor,
        SequenceClassifier,
        SequenceForecaster,
        SequenceRegressor,
    )
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package == "evenflow":
        raise
    raise ImportError(
        f'evenflow.sklearn needs {package}, which is not installed: pip install "evenflow[sklearn]"'
    ) from error

__all__ = [
    "EchoStateClassifier",
    "EchoStateRegressor",
    "SequenceClassifier",
    "SequenceForecaster",
    "SequenceRegressor",
]
