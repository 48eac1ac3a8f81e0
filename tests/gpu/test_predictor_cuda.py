"""A `Predictor` on a GPU answers as on a CPU, in several batches, and names the same wrong numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evenflow import SequenceModel, create
from evenflow.models import DataColumn, DataSchema, Predictor, predictor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

COLUMNS = (
    DataColumn("ax", mean=100.0, deviation=20.0),
    DataColumn("place", "category", categories=("bed", "chair", "floor")),
    DataColumn("ay", mean=-3.0, deviation=0.5, missing="previous", mask=True),
)
TARGETS = {
    "classification": (DataColumn("activity", "category", categories=("rest", "run")),),
    "regression": (DataColumn("speed", mean=1000.0, deviation=316.0),),
}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # float32 sums in another order


def predictor_of(kind: str, readout: str, columns=COLUMNS) -> Predictor:
    schema = DataSchema(kind, readout, columns, TARGETS.get(kind, ()))
    torch.manual_seed(0)
    return Predictor(SequenceModel(create("sgornn", schema.width, 32), schema.outputs, readout=readout), schema)


@pytest.fixture
def x():
    draw = np.random.default_rng(0)
    numbers = 100 + 20 * draw.normal(size=(50, 9)), draw.normal(size=(50, 9))
    values = np.stack([numbers[0], draw.integers(0, 3, (50, 9)), numbers[1]], 2)
    values[3, 4, 2] = np.nan
    return values


@pytest.mark.parametrize("readout", ["last", "every"])
@pytest.mark.parametrize("ragged", [False, True])
def test_predictions_equal_those_of_a_cpu(readout, ragged, x, monkeypatch):
    sequences = [each[: 2 + n % 8] for n, each in enumerate(x)] if ragged else x
    numbers, classes = predictor_of("regression", readout), predictor_of("classification", readout)
    expected, likely = numbers.predict(sequences), classes.predict_proba(sequences)
    monkeypatch.setitem(predictor.LARGEST, "cuda", 7)  # eight batches
    for found, wanted in zip(numbers.to("cuda").predict(sequences), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
    for found, wanted in zip(classes.to("cuda").predict_proba(sequences), likely, strict=True):
        np.testing.assert_allclose(found, wanted, **CLOSE)


def test_forecasts_equal_those_of_a_cpu(x):
    made = predictor_of("next", "every", (COLUMNS[0], COLUMNS[2]))
    series = [each[: 3 + n % 6][:, [0, 2]] for n, each in enumerate(x)]
    expected = made.forecast(series, 5)
    np.testing.assert_allclose(made.to("cuda").forecast(series, 5), expected, rtol=1e-4, atol=1e-3)


def test_a_wrong_number_is_named(x, monkeypatch):
    made = predictor_of("regression", "last").to("cuda")
    monkeypatch.setitem(predictor.LARGEST, "cuda", 7)
    x[20, 5, 0] = np.inf
    with pytest.raises(ValueError, match="step 5 of sequence 20 has inf in ax"):
        made.predict(x)
    x[20, 5, 0], x[21, 2, 1] = 0, 3
    with pytest.raises(ValueError, match="step 2 of sequence 21 has 3"):
        made.predict(x)
