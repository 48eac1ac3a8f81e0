"""The estimators behind the adapters of aeon and sktime, on collections of equal series."""

from __future__ import annotations

import numpy as np
import pytest

from evenflow.sklearn import EchoStateRegressor, SequenceClassifier


def collection() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Series ``(N, 1, T)``, as both libraries have them, a class and a number for each."""
    x = np.random.default_rng(0).normal(size=(80, 1, 12))
    return x, np.where(x.mean((1, 2)) > 0, "up", "down"), x.mean((1, 2))


def test_aeon():
    pytest.importorskip("aeon", reason="aeon is not installed")
    from aeon.classification.sklearn import SklearnClassifierWrapper
    from aeon.pipeline import make_pipeline
    from aeon.regression.sklearn import SklearnRegressorWrapper
    from aeon.transformations.collection import Normalizer

    x, y, numbers = collection()
    classifier = SklearnClassifierWrapper(SequenceClassifier(hidden_size=8, epochs=25), random_state=0).fit(x, y)
    assert classifier.score(x, y) > 0.8
    assert classifier.predict_proba(x).shape == (80, 2)
    regressor = SklearnRegressorWrapper(EchoStateRegressor(50), random_state=0).fit(x, numbers)
    assert regressor.predict(x).shape == (80,)
    assert np.corrcoef(regressor.predict(x), numbers)[0, 1] > 0.9
    small = SklearnClassifierWrapper(SequenceClassifier(hidden_size=8, epochs=2))
    assert make_pipeline(Normalizer(), small).fit(x, y).predict(x).shape == (80,)


def test_sktime():
    pytest.importorskip("sktime", reason="sktime is not installed")
    from sktime.classification.compose import SklearnClassifierPipeline
    from sktime.regression.compose import SklearnRegressorPipeline
    from sktime.transformations.panel.padder import PaddingTransformer

    x, y, numbers = collection()
    small = SequenceClassifier(hidden_size=8, epochs=25, random_state=0)
    classifier = SklearnClassifierPipeline(small, transformers=[PaddingTransformer()]).fit(x, y)
    assert (classifier.predict(x) == y).mean() > 0.8
    reservoir = EchoStateRegressor(50, random_state=0)
    regressor = SklearnRegressorPipeline(reservoir, transformers=[PaddingTransformer()]).fit(x, numbers)
    assert np.corrcoef(regressor.predict(x), numbers)[0, 1] > 0.9
