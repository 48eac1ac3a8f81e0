"""Shares of right answers beside those of scikit-learn, also where there is nothing to divide by."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from evenflow.models.prediction_quality import label_shares


def test_shares_are_those_of_scikit_learn() -> None:
    draw = np.random.RandomState(0)
    true, predicted = draw.randint(4, size=200), draw.randint(3, size=200)  # label 3 is never predicted, 4 is unknown
    confusion = metrics.confusion_matrix(true, predicted, labels=range(5))
    shares = label_shares(confusion)
    expected = metrics.precision_recall_fscore_support(true, predicted, labels=range(5), zero_division=np.nan)
    for name, values in zip(("precision", "recall", "f1", "count"), expected, strict=True):
        assert shares[name] == pytest.approx(values, nan_ok=True), name
    assert np.isnan(shares["precision"]).tolist() == [False, False, False, True, True]
    assert np.isnan(shares["recall"]).tolist() == np.isnan(shares["f1"]).tolist() == [False] * 4 + [True]
