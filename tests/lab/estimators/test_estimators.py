"""The estimators on sequences: what they learn, take and give, and inside scikit-learn's searches and pipelines."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import evenflow
from evenflow.sklearn import (
    EchoStateClassifier,
    EchoStateRegressor,
    SequenceClassifier,
    SequenceForecaster,
    SequenceRegressor,
)

SMALL = {"hidden_size": 8, "epochs": 15, "random_state": 0}
PREDICTED = 1e-5  # float32 outputs of different batches
CLASSIFIERS = [SequenceClassifier(**SMALL), EchoStateClassifier(100, leak=0.3, random_state=0)]
REGRESSORS = [SequenceRegressor(**SMALL), EchoStateRegressor(100, leak=0.3, random_state=0)]
NAMES = [type(each).__name__ for each in (*CLASSIFIERS, *REGRESSORS)]


def windows(count: int = 120, steps: int = 9, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of two channels in units far from 0 and 1, and the mean of the first channel."""
    x = np.random.default_rng(seed).normal(size=(count, steps, 2)) * [30, 0.01] + [500, 2]
    return x, 1e4 + 20 * (x[..., 0].mean(1) - 500)


def named(numbers: np.ndarray) -> np.ndarray:
    return np.where(numbers > 1e4, "up", "down")


def ragged(count: int = 120) -> tuple[list[np.ndarray], np.ndarray]:
    draw = np.random.default_rng(1)
    x = [draw.normal(size=(length, 2)) for length in draw.integers(1, 12, count)]
    return x, np.array([each[-1, 0] for each in x])


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=NAMES[:2])
def test_classes_of_new_sequences(estimator):
    x, numbers = windows(300)
    y = named(numbers)
    fitted = clone(estimator).fit(x[:240], y[:240])
    assert fitted.score(x[240:], y[240:]) > 0.85
    assert fitted.classes_.tolist() == ["down", "up"]
    probabilities = fitted.predict_proba(x[240:])
    assert probabilities.shape == (60, 2)
    assert np.allclose(probabilities.sum(1), 1)
    assert (fitted.classes_[probabilities.argmax(1)] == fitted.predict(x[240:])).all()


@pytest.mark.parametrize("estimator", REGRESSORS, ids=NAMES[2:])
def test_numbers_of_new_sequences_are_in_the_users_units(estimator):
    x, y = windows(300)
    fitted = clone(estimator).fit(x[:240], y[:240])
    assert fitted.score(x[240:], y[240:]) > 0.8
    assert abs(fitted.predict(x[240:]).mean() - 1e4) < 200
    both = clone(estimator).fit(x, np.stack([y, -y], 1)).predict(x)
    assert both.shape == (300, 2)
    assert (both[:, 0] > 9e3).all()
    assert (both[:, 1] < -9e3).all()


@pytest.mark.parametrize("estimator", [*CLASSIFIERS, *REGRESSORS], ids=NAMES)
def test_ragged_sequences(estimator):
    x, numbers = ragged(300)
    y = numbers > 0 if hasattr(estimator, "predict_proba") else numbers
    fitted = clone(estimator).fit(x, y)
    assert fitted.score(x, y) > 0.8
    alone = np.concatenate([fitted.predict([each]) for each in x[:20]])
    together = fitted.predict(x[:20])
    assert (alone == together).all() if alone.dtype == bool else np.allclose(alone, together, atol=PREDICTED)
    several = np.empty(20, object)
    several[:] = x[:20]
    assert (fitted.predict(several) == together).all()


def test_equal_sequences_in_every_form_train_the_same_model():
    x, _ = windows(40)
    rows, y = x[..., 0], np.arange(40) % 3
    fitted = SequenceClassifier(**SMALL).fit(rows, y)
    for form in (rows[..., None], list(rows), list(rows[..., None]), rows.tolist()):
        again = SequenceClassifier(**SMALL).fit(form, y)
        assert np.array_equal(again.predict_proba(form), fitted.predict_proba(rows))
    assert fitted.predict(rows[:, :5, None]).shape == (40,)  # other lengths, where no columns are meant


def test_search_and_cross_validation():
    x, numbers = windows()
    search = GridSearchCV(SequenceClassifier(**SMALL), {"system": ["rnn", "gru"], "hidden_size": [4, 8]}, cv=2)
    search.fit(x, named(numbers))
    assert set(search.best_params_) == {"system", "hidden_size"}
    assert search.best_score_ > 0.7
    assert cross_val_score(EchoStateRegressor(30, random_state=0), *ragged(), cv=3).shape == (3,)


def test_pipeline():
    x, numbers = windows()
    pipeline = make_pipeline(StandardScaler(), EchoStateRegressor(50, random_state=0)).fit(x[..., 0], numbers)
    assert pipeline.score(x[..., 0], numbers) > 0.8


@pytest.mark.parametrize("strategy", ["recursive", "direct"])
def test_forecasts(strategy):
    draw = np.random.default_rng(0)
    x = 50 + 7 * np.sin(np.arange(40) * draw.uniform(0.3, 0.4, (60, 1)) + draw.uniform(0, 6, (60, 1)))
    fitted = SequenceForecaster(5, hidden_size=24, strategy=strategy, epochs=40, random_state=0).fit(x[:50, :35])
    assert fitted.predictor_.schema.horizon == (5 if strategy == "direct" else 1)
    found = fitted.predict(x[50:, :35])
    assert found.shape == (10, 5)
    assert fitted.score(x[50:, :35], x[50:, 35:]) > 0.7
    assert fitted.score(x[50:]) == pytest.approx(fitted.score(x[50:, :35, None], x[50:, 35:, None]), abs=PREDICTED)
    assert fitted.predict(x[50:, :35, None]).shape == (10, 5, 1)
    lengths = [each[: 20 + n] for n, each in enumerate(x)]
    assert clone(fitted).set_params(epochs=2).fit(lengths).predict(lengths).shape == (60, 5)


def test_sequences_of_weight_zero_are_left_out():
    x, y = windows(60)
    weights = np.r_[np.ones(30), np.zeros(30)]
    y[30:] *= -5
    for estimator in REGRESSORS:
        weighted = clone(estimator).fit(x, y, sample_weight=weights).predict(x)
        assert np.array_equal(weighted, clone(estimator).fit(x[:30], y[:30]).predict(x))


def test_weights_decide_between_contradicting_classes():
    x = np.repeat(windows(40)[0], 2, 0)
    y, weights = np.tile(["a", "b"], 40), np.tile([1.0, 9.0], 40)
    for estimator in (
        SequenceClassifier(**SMALL | {"validation": 0}),
        EchoStateClassifier(20, ridge=1, random_state=0),
    ):
        assert (clone(estimator).fit(x, y, sample_weight=weights).predict(x) == "b").mean() > 0.9
        assert (clone(estimator).fit(x, y, sample_weight=1 / weights).predict(x) == "a").mean() > 0.9


def test_early_stopping_keeps_the_best_epoch():
    x, numbers = windows(60)
    noise = np.random.default_rng(2).permutation(numbers)  # nothing to learn
    fitted = SequenceRegressor(hidden_size=16, epochs=60, patience=3, random_state=0).fit(x, noise)
    losses = fitted.history_["valid_loss"]
    assert losses.min() > 0.5 * noise.var()  # in the units of y
    assert fitted.n_iter_ == len(losses) < 60
    assert losses.argmin() == len(losses) - 4
    assert SequenceRegressor(epochs=7, patience=None, hidden_size=4).fit(x, noise).n_iter_ == 7


def test_warm_start_continues():
    x, y = windows(60)
    estimator = SequenceRegressor(hidden_size=8, epochs=5, warm_start=True, random_state=0)
    first = estimator.fit(x, y).predictor_
    kept, before = first.predict(x), estimator.history_["valid_loss"]
    after = estimator.fit(x, y).history_["valid_loss"]
    assert after[0] < before.min() * 1.5
    assert after.min() < before.min()
    assert np.array_equal(first.predict(x), kept)  # the earlier model is not changed
    assert estimator.predictor_.schema == first.schema
    with pytest.raises(ValueError) as error:
        estimator.fit(x[..., :1], y)
    assert str(error.value) == "warm_start needs the same channels as the fit before, 2, got 1"


def test_a_seed_decides_everything():
    x, y = windows(40)
    for estimator in REGRESSORS:
        one, two = clone(estimator).fit(x, y).predict(x), clone(estimator).fit(x, y).predict(x)
        assert np.array_equal(one, two)
        assert not np.array_equal(one, clone(estimator).set_params(random_state=1).fit(x, y).predict(x))


def test_verbose_says_how_the_training_ended(capsys):
    x, y = windows(40)
    SequenceRegressor(hidden_size=4, epochs=3, verbose=True).fit(x, y)
    assert re.fullmatch(
        r"SequenceRegressor: 3 epochs in [\d.]+ s, best validation: R² -?[\d.e-]+, loss [\d.e+-]+\n",
        capsys.readouterr().out,
    )
    SequenceRegressor(hidden_size=4, epochs=3).fit(x, y)
    assert capsys.readouterr().out == ""


def test_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SequenceRegressor(hidden_size=4, epochs=2).fit(*windows(20))
    assert list(tmp_path.iterdir()) == []


def test_pickle_and_bundle_in_another_process(tmp_path):
    x, y = windows(50)
    expected = {}
    for estimator in (*CLASSIFIERS, *REGRESSORS):
        name = type(estimator).__name__
        fitted = clone(estimator).fit(x, named(y) if hasattr(estimator, "predict_proba") else y)
        (tmp_path / f"{name}.pickle").write_bytes(pickle.dumps(fitted))
        evenflow.save(fitted.predictor_, tmp_path / name)
        expected[f"{name}.pickle"] = expected[name] = fitted.predict(x)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import pickle, sys, evenflow, numpy as np\n"
        "x = np.load('x.npy')\n"
        "read = lambda file: pickle.load(open(file, 'rb')) if file.endswith('.pickle') else evenflow.load(file)\n"
        "np.savez('predicted.npz', **{file: read(file).predict(x) for file in sys.argv[1:]})"
    )
    subprocess.run([sys.executable, "-c", code, *expected], cwd=tmp_path, check=True)
    predicted = np.load(tmp_path / "predicted.npz")
    for file, y in expected.items():
        assert np.array_equal(predicted[file], y), file


@pytest.mark.parametrize("system", ["mlp", "lstm", "esn"])
def test_other_systems(system):
    x, y = windows(40)
    assert SequenceRegressor(system, 8, epochs=3).fit(x, y).predict(x).shape == (40,)


def test_options_and_settings_reach_layer_and_training():
    x, y = windows(40)
    fitted = SequenceRegressor(
        "rnn", 8, num_layers=2, epochs=2, options={"bidirectional": True}, settings={"clip_norm": 1.0}
    ).fit(x, y)
    layer = fitted.predictor_.model.layer
    assert layer.num_layers == 2
    assert layer.bidirectional
    assert EchoStateRegressor(20, options={"density": 0.5}).fit(x, y).predictor_.model.layer.density == 0.5


X, Y = windows(20)


@pytest.mark.parametrize(
    ("estimator", "x", "y", "options", "sentence"),
    [
        (SequenceRegressor(settings={"lr": 1}), X, Y, {}, "settings must leave out lr, which is the parameter lr"),
        (
            SequenceRegressor(settings={"seed": 1}),
            X,
            Y,
            {},
            "settings must leave out seed, which is the parameter random_state",
        ),
        (SequenceRegressor("grru"), X, Y, {}, "unknown system 'grru', did you mean gru or ugru or goru?"),
        (SequenceRegressor(validation=1), X, Y, {}, "validation must be a number of at least 0 and below 1, got 1"),
        (SequenceRegressor(hidden_size=0), X, Y, {}, "hidden_size must be a whole number of at least 1, got 0"),
        (SequenceForecaster(0), X, None, {}, "horizon must be a whole number of at least 1, got 0"),
        (SequenceForecaster(strategy="both"), X, None, {}, "strategy must be one of recursive, direct, got 'both'"),
        (
            SequenceForecaster(99, strategy="direct"),
            X,
            None,
            {},
            "X must have a sequence of more than horizon = 99 steps for strategy direct",
        ),
        (
            EchoStateRegressor(options={"leak": 1}),
            X,
            Y,
            {},
            "options must leave out leak, which is a parameter of EchoStateRegressor",
        ),
        (EchoStateRegressor(leak=2), X, Y, {}, "leak must be a number above 0 and at most 1, got 2"),
        (SequenceRegressor(), X, None, {}, "SequenceRegressor requires y to be passed, but the target y is None"),
        (
            SequenceRegressor(),
            [np.ones(3), np.ones((3, 2))],
            Y[:2],
            {},
            "X must hold sequences with as many channels each, got [1, 2]",
        ),
        (
            SequenceRegressor(),
            [np.ones(3), np.array([1, np.nan])],
            Y[:2],
            {},
            "X must hold finite numbers, step 1 of sequence 1 has nan in channel 0",
        ),
        (
            SequenceRegressor(),
            [np.ones(3), np.ones(0)],
            Y[:2],
            {},
            "sequence 1 of X must be numbers of shape (T,) or (T, C), got float64 of shape (0,)",
        ),
        (
            SequenceRegressor(),
            X,
            Y,
            {"sample_weight": np.ones(3)},
            "sample_weight must have shape (20,), one for each sequence, got (3,)",
        ),
        (SequenceRegressor(), X, Y, {"sample_weight": -np.ones(20)}, "sample_weight must not be negative, got -1"),
        (
            SequenceRegressor(),
            X,
            Y,
            {"sample_weight": np.zeros(20)},
            "sample_weight must have a weight above zero, got zero for all sequences",
        ),
    ],
)
def test_wrong_input_is_named(estimator, x, y, options, sentence):
    with pytest.raises(ValueError) as error:
        clone(estimator).fit(x, y, **options)
    assert str(error.value) == sentence


def test_wrong_input_of_predict_is_named():
    with pytest.raises(NotFittedError):
        SequenceRegressor().predict(X)
    fitted = EchoStateRegressor(10).fit(X, Y)
    with pytest.raises(ValueError) as error:
        fitted.predict(X[..., :1])
    assert str(error.value) == "X must be an array (N, T, 2), N sequences of T steps with x0, x1, got (20, 9, 1)"
    with pytest.raises(ValueError) as error:
        SequenceForecaster(3, epochs=1).fit(X).score(X[:, :3])
    assert str(error.value) == "X must have sequences of more than horizon = 3 steps to be scored without y, got 3"


@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceRegressor, SequenceForecaster, EchoStateClassifier])
def test_the_docstring_lists_every_argument(kind):
    arguments = inspect.cleandoc(kind.__doc__).split("\nArgs:\n")[1].split("\nAttributes:")[0]
    listed = re.findall(r"(?m)^    (\w+): ", arguments)
    assert listed == list(kind().get_params(deep=False)) or sorted(listed) == sorted(kind().get_params())


@pytest.mark.parametrize("kind", [SequenceClassifier, SequenceRegressor, SequenceForecaster])
def test_trained_estimators_share_their_parameters(kind):
    made = clone(kind(options={"bias": False}, settings={"clip_norm": 1.0}, epochs=3))
    assert made.get_params()["options"] == {"bias": False}
    assert set(SequenceRegressor().get_params()) <= set(made.get_params())
