"""Predictions in the user's units, from every form of input, in batches of a bounded size."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from evenflow import SequenceModel, create
from evenflow.models import DataColumn, DataSchema, FlatModel, Predictor, predictor
from evenflow.models.data_column import scaled_columns

COLUMNS = (DataColumn("ax", mean=100.0, deviation=20.0), DataColumn("ay", mean=-3.0, deviation=0.5))
ACTIVITY = DataColumn("activity", "category", categories=("rest", "run", "walk"))
ROUNDING = 1e-6  # of float32 outputs of size one


def predictor_of(kind: str, readout: str, layer: str = "gru", **options) -> Predictor:
    targets = {"classification": (ACTIVITY,), "regression": (DataColumn("speed", mean=1000.0, deviation=316.0),)}
    schema = DataSchema(kind, readout, COLUMNS, targets.get(kind, ()), **options)
    torch.manual_seed(0)
    return Predictor(SequenceModel(create(layer, 2, 8), schema.outputs, readout=readout), schema)


def raw_outputs(made: Predictor, x: np.ndarray) -> torch.Tensor:
    """Outputs ``(N, ...)`` of the model for scaled inputs, without the predictor."""
    mean, deviation = np.array([100.0, -3.0]), np.array([20.0, 0.5])
    scaled = torch.from_numpy(((x - mean) / deviation).astype(np.float32)).transpose(0, 1)
    with torch.no_grad():
        y = made.model(scaled)[0]
    return y if made.schema.readout == "last" else y.transpose(0, 1)


@pytest.fixture
def x():
    draw = np.random.RandomState(0)
    return np.stack([100 + 20 * draw.randn(7, 5), -3 + 0.5 * draw.randn(7, 5)], -1)


@pytest.mark.parametrize("readout", ["last", "every"])
def test_classes_are_labels(readout, x):
    made = predictor_of("classification", readout)
    scores = raw_outputs(made, x)
    found, likely = made.predict(x), made.predict_proba(x)
    assert (found == np.array(ACTIVITY.categories)[scores.argmax(-1)]).all()
    np.testing.assert_allclose(likely, scores.softmax(-1), atol=ROUNDING)


@pytest.mark.parametrize("readout", ["last", "every"])
def test_numbers_are_in_the_units_of_the_user(readout, x):
    made = predictor_of("regression", readout)
    expected = raw_outputs(made, x)[..., 0].double() * 316 + 1000
    np.testing.assert_allclose(made.predict(x), expected, rtol=ROUNDING)


def test_several_targets_have_a_dimension(x):
    schema = DataSchema("regression", "last", COLUMNS, (DataColumn("a"), DataColumn("b", mean=5.0)))
    made = Predictor(SequenceModel(create("rnn", 2, 8), 2), schema)
    np.testing.assert_allclose(made.predict(x), raw_outputs(made, x).double() + torch.tensor([0.0, 5.0]), atol=ROUNDING)


def test_labels_that_hold_together(x):
    schema = DataSchema("multilabel", "last", COLUMNS, (DataColumn("a"), DataColumn("b")))
    made = Predictor(SequenceModel(create("rnn", 2, 8), 2), schema)
    assert (made.predict(x) == (raw_outputs(made, x) > 0).numpy()).all()
    np.testing.assert_allclose(made.predict_proba(x), raw_outputs(made, x).sigmoid(), atol=ROUNDING)


@pytest.mark.parametrize("layer", ["gru", "lstm", "urnn"])
def test_a_forecast_reads_its_own_predictions(layer, x):
    made = predictor_of("next", "every", layer)
    expected, series = [], x
    for _ in range(4):
        step = made.predict(series)[:, -1:]
        expected.append(step)
        series = np.concatenate([series, step], 1)
    np.testing.assert_allclose(made.forecast(x, 4), np.concatenate(expected, 1), rtol=1e-4)


def test_a_forecast_of_ragged_sequences(x):
    made = predictor_of("next", "every")
    ragged = [each[: 2 + n % 4] for n, each in enumerate(x)]
    alone = np.concatenate([made.forecast(each[None], 3) for each in ragged])
    np.testing.assert_allclose(made.forecast(ragged, 3), alone, rtol=1e-5)


@pytest.mark.parametrize("readout", ["last", "every"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_every_form_of_input_gives_the_same(kind, readout, x):
    made = predictor_of(kind, readout)
    expected = made.predict(x)
    for other in (x.astype(np.float32), torch.from_numpy(x), list(x), [each.tolist() for each in x], x[::-1][::-1]):
        assert _close(np.asarray(made.predict(other)), expected)
    table = {"sequence": np.repeat([f"s{n}" for n in range(7)], 5), "ay": x[..., 1].ravel(), "ax": x[..., 0].ravel()}
    for frame in (pd.DataFrame(table), pl.DataFrame(table)):
        assert _close(made.predict(frame), expected.ravel())
    shuffled = pd.DataFrame(table).iloc[np.arange(35).reshape(7, 5).T.ravel()]  # sequences alternate
    assert _close(made.predict(shuffled), expected if readout == "last" else expected.T.ravel())


def _close(found: np.ndarray, expected: np.ndarray) -> bool:
    return (found == expected).all() if found.dtype.kind == "U" else np.allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("readout", ["last", "every"])
def test_ragged_lists_agree_with_each_sequence_alone(readout, x):
    made = predictor_of("regression", readout, "sgornn")
    ragged = [each[: 1 + (3 * n) % 5] for n, each in enumerate(x)]
    for found, each in zip(made.predict(ragged), ragged, strict=True):
        np.testing.assert_allclose(found, made.predict(each[None])[0], rtol=1e-5)


def test_small_batches_give_the_same(x, monkeypatch):
    made = predictor_of("regression", "every")
    ragged = [each[: 1 + n % 5] for n, each in enumerate(x)]
    whole, pieces = made.predict(x), made.predict(ragged)
    monkeypatch.setitem(predictor.BUDGET, "cpu", 1000)
    np.testing.assert_allclose(made.predict(x), whole, rtol=1e-5)
    for found, expected in zip(made.predict(ragged), pieces, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_one_long_series_is_cut_as_in_training():
    schema = DataSchema("next", "every", (DataColumn("level", mean=5.0, deviation=2.0),), length=10)
    made = Predictor(SequenceModel(create("gru", 1, 8), 1, readout="every"), schema)
    level = np.arange(25.0)
    found = made.predict(pd.DataFrame({"time": level, "level": level}))
    pieces = [made.predict(level[None, first : first + 10, None])[0] for first in (0, 10, 20)]
    np.testing.assert_allclose(found, np.concatenate(pieces), rtol=1e-6)
    # A forecast continues the last ten steps, wherever the pieces end.
    ahead = made.forecast(pd.DataFrame({"level": level}), 3)
    np.testing.assert_allclose(ahead, made.forecast(level[None, -10:, None], 3), rtol=1e-6)
    assert made.forecast(level[None], 3).shape == (1, 3)


def test_symbols():
    schema = DataSchema(
        "classification", "every", (DataColumn("x0"),), (DataColumn("y", "category", categories=(0, 1, 2)),), 3
    )
    made = Predictor(SequenceModel(create("gru", 4, 8), 3, readout="every", vocabulary=3), schema)
    symbols = np.array([[0, 1, 2, 1], [2, 2, 0, 1]])
    with torch.no_grad():
        expected = made.model(torch.from_numpy(symbols.T))[0].argmax(-1).T
    assert (made.predict(symbols) == expected.numpy()).all()
    with pytest.raises(ValueError, match=r"^X must hold whole numbers from 0 to 2, step 3 of sequence 1 has 3$"):
        made.predict(np.array([[0, 1, 2, 1], [2, 2, 0, 3]]))


def test_a_network_without_time(x):
    from evenflow import MLP

    schema = DataSchema("regression", "last", COLUMNS, (DataColumn("y"),))
    made = Predictor(FlatModel(MLP(10, 1, width=4, depth=2)), schema)
    np.testing.assert_allclose(made.predict(x), raw_outputs(made, x)[:, 0], atol=ROUNDING)
    with pytest.raises(ValueError, match=r"^X must have sequences of 5 steps, all that this network reads, got 4$"):
        made.predict(x[:, :4])


def test_columns_are_scaled_by_the_training_rows():
    rows = np.array([[1.0, 7.0], [3.0, 7.0]])
    first, second = scaled_columns([DataColumn("a"), DataColumn("still")], rows)
    assert (first.mean, first.deviation, second.mean, second.deviation) == (2.0, 1.0, 7.0, 1.0)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (np.ones((3, 5, 4)), r"X must be an array \(N, T, 2\), N sequences of T steps with ax, ay, got \(3, 5, 4\)"),
        (np.ones((5, 2)), r"X must be an array \(N, T, 2\), .*, got \(5, 2\); one sequence is X\[None\]"),
        (np.ones((0, 5, 2)), r"X must hold at least one sequence, got none"),
        ([], r"X must hold at least one sequence, got none"),
        (np.ones((3, 0, 2)), r"X must have a step in every sequence, sequence 0 has none"),
        ([np.ones((3, 2)), np.ones((3, 1))], r"sequence 1 of X must be \(T, 2\), steps with ax, ay, got \(3, 1\)"),
        (np.array([[["a", "b"]]]), r"X must hold numbers, got <U1"),
        ("runs", r"X must hold numbers, got <U4"),
        (np.full((2, 3, 2), [1, np.nan]), r"X must hold finite numbers, step 0 of sequence 0 has nan in ay"),
        (np.full((2, 3, 2), [1e300, 1]), r"X must hold finite numbers, step 0 of sequence 0 has 1e\+300 in ax"),
        (pd.DataFrame({"ax": [1.0]}), r"the table has no column 'ay', which the model reads; it has ax"),
        (pd.DataFrame({"ax": [1.0], "ay": ["low"]}), r"row 0 of column 'ay' holds 'low', which is not a number"),
        (pd.DataFrame({"ax": [], "ay": []}), r"X must hold at least one sequence, got none"),
    ],
)
def test_wrong_inputs(wrong, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        predictor_of("classification", "last").predict(wrong)


def test_what_a_model_cannot_do(x):
    with pytest.raises(ValueError, match=r"^predict_proba needs a model that classifies, this one is for regression$"):
        predictor_of("regression", "last").predict_proba(x)
    with pytest.raises(ValueError, match=r"^forecast needs a model that predicts the next step, this one is for .*$"):
        predictor_of("regression", "every").forecast(x, 3)
    with pytest.raises(ValueError, match=r"^horizon must be a whole number of at least 1, got 0$"):
        predictor_of("next", "every").forecast(x, 0)
