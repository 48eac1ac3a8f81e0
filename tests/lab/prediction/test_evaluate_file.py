"""Evaluations beside those of scikit-learn, in one block and in many."""

from __future__ import annotations

import numpy as np
import pytest
from made_files import predictor_of, sequences, write_csv
from sklearn import metrics

from evenflow import SequenceModel, create
from evenflow.lab.data import table_blocks, table_file
from evenflow.lab.prediction import evaluate_file
from evenflow.models import DataColumn, DataSchema, Predictor

LABELS = ["rest", "run", "walk"]


@pytest.fixture(params=["one block", "many blocks"], autouse=True)
def blocks(request, monkeypatch):
    if request.param == "many blocks":
        monkeypatch.setattr(table_blocks, "BLOCK_ROWS", 3)
        monkeypatch.setattr(table_file, "ROWS", 2)


@pytest.mark.parametrize("readout", ["last", "every"])
def test_classes(readout, tmp_path):
    made, inputs, draw = predictor_of("classification", readout), sequences(30), np.random.RandomState(1)
    truth = [np.array(LABELS)[draw.randint(3, size=len(each) if readout == "every" else ())] for each in inputs]
    found = evaluate_file(made, write_csv(tmp_path / "test.csv", inputs, truth))
    true, predicted = (np.concatenate([np.atleast_1d(x) for x in y]) for y in (truth, made.predict(inputs)))
    assert found.accuracy == pytest.approx(metrics.accuracy_score(true, predicted))
    assert (found.confusion == metrics.confusion_matrix(true, predicted, labels=LABELS)).all()
    for row in found.by_label():
        only = {"labels": [row["label"]], "average": "micro"}
        assert row["f1"] == pytest.approx(metrics.f1_score(true, predicted, **only))
        assert row["recall"] == pytest.approx(metrics.recall_score(true, predicted, **only))
        if (predicted == row["label"]).any():
            assert row["precision"] == pytest.approx(metrics.precision_score(true, predicted, **only))
        else:
            assert np.isnan(row["precision"])
    assert (found.sequences, found.answers) == (30, len(true))


@pytest.mark.parametrize("readout", ["last", "every"])
def test_numbers(readout, tmp_path):
    made, inputs, draw = predictor_of("regression", readout), sequences(30), np.random.RandomState(1)
    truth = [1000 + 300 * draw.randn(*([len(each)] if readout == "every" else [])) for each in inputs]
    (found,) = evaluate_file(made, write_csv(tmp_path / "test.csv", inputs, truth, "speed")).errors
    true, predicted = (np.concatenate([np.atleast_1d(x) for x in y]) for y in (truth, made.predict(inputs)))
    assert found["column"] == "speed"
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(true, predicted), rel=1e-5)
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(true, predicted), rel=1e-5)
    assert found["r2"] == pytest.approx(metrics.r2_score(true, predicted), rel=1e-4)


def test_the_next_step(tmp_path):
    made, inputs = predictor_of("next", "every"), sequences(30)
    found = evaluate_file(made, write_csv(tmp_path / "test.csv", inputs))
    true = np.concatenate([each[1:] for each in inputs])
    predicted = np.concatenate([made.predict(each[None])[0, :-1] for each in inputs])
    assert [row["column"] for row in found.errors] == ["ax", "ay"]
    for place, row in enumerate(found.errors):
        assert row["rmse"] == pytest.approx(
            metrics.root_mean_squared_error(true[:, place], predicted[:, place]), rel=1e-4
        )


def test_the_next_step_beside_words_and_missing_values(tmp_path):
    """Words are read and not predicted; a missing number is read and is no target."""
    columns = (DataColumn("ax", missing="mean"), DataColumn("mode", "category", categories=("off", "on")))
    schema = DataSchema("next", "every", columns)
    made = Predictor(SequenceModel(create("gru", schema.width, 8), schema.outputs, readout="every"), schema)
    rows = [("a", 0, 1.5, "on"), ("a", 1, "", "off"), ("a", 2, 2.5, "off"), ("a", 3, 0.5, "on")]
    lines = ["sequence,time,ax,mode", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "test.csv").write_text("\n".join(lines) + "\n")
    found = evaluate_file(made, tmp_path / "test.csv")
    inputs = np.array([[1.5, 1], [np.nan, 0], [2.5, 0], [0.5, 1]])
    predicted = np.asarray(made.predict(inputs[None]))[0, :-1, 0]
    (row,) = found.errors
    assert row["column"] == "ax"
    assert found.answers == 2
    assert row["mae"] == pytest.approx(np.abs(np.array([2.5, 0.5]) - predicted[1:]).mean(), rel=1e-5)


def test_a_label_that_the_model_does_not_know(tmp_path):
    source = write_csv(tmp_path / "test.csv", sequences(3), ["rest", "swim", "run"])
    sentence = r"line 3, column 'activity', holds 'swim', and the labels of the model are rest, run, walk$"
    with pytest.raises(ValueError, match=sentence):
        evaluate_file(predictor_of("classification", "last"), source)


def test_targets_are_needed(tmp_path):
    source = write_csv(tmp_path / "test.csv", sequences(3))
    with pytest.raises(ValueError, match=r"it has no column 'activity', found 'sequence', 'time', 'ay', 'ax'$"):
        evaluate_file(predictor_of("classification", "last"), source)


def test_one_target_for_a_sequence(tmp_path):
    source = write_csv(tmp_path / "test.csv", sequences(2), [np.array(["rest"]), np.array(["rest", "run"])])
    with pytest.raises(ValueError, match=r"line 4 changes the target of its sequence, which has one$"):
        evaluate_file(predictor_of("classification", "last"), source)
