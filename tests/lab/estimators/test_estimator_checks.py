"""scikit-learn's own checks, on 2-D input: a row is a sequence of one channel."""

from __future__ import annotations

import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from evenflow import sklearn as estimators

TRAINED = ("SequenceClassifier", "SequenceRegressor", "SequenceForecaster")
SOLVED = ("EchoStateClassifier", "EchoStateRegressor")
# Expected of every estimator that is trained in mini-batches, MLPClassifier included.
MINI_BATCHES = {"check_sample_weight_equivalence_on_dense_data": "a repeated sequence changes the mini-batches"}
# These train to a good score, or on hundreds of sequences.
LONG = ("check_classifiers_train", "check_regressors_train", "check_sample_weight_equivalence_on_dense_data")


def named(name: str, **options: object) -> BaseEstimator:
    return getattr(estimators, name)(**options)


def test_the_estimators_are_these():
    assert sorted(estimators.__all__) == sorted((*TRAINED, *SOLVED))


@pytest.mark.parametrize("name", SOLVED)
def test_a_solved_readout_passes_every_check(name):
    check_estimator(named(name, hidden_size=50), on_skip=None)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_estimator_passes_every_check(name):
    results = check_estimator(named(name), on_skip=None, expected_failed_checks=MINI_BATCHES)
    assert [each["check_name"] for each in results if each["status"] == "xfail"] == list(MINI_BATCHES)


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_estimator_passes_the_checks_that_take_little_training(name):
    done = 0
    for estimator, check in estimator_checks_generator(named(name, hidden_size=4, epochs=2)):
        checked = getattr(check, "func", check).__name__
        if checked not in LONG and checked != "check_array_api_input":
            check(estimator)
            done += 1
    assert done > 40
