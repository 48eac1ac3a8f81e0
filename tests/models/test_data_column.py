from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenflow import SequenceModel, create
from evenflow.models import DataColumn, DataSchema, Predictor
from evenflow.models.data_column import read_numbers, scaled_columns

NAN = float("nan")
COLOUR = DataColumn("colour", "category", categories=("blue", "red"))


def read(columns, rows):
    return read_numbers(columns, torch.tensor(rows, dtype=torch.float64)).tolist()


def test_a_category_becomes_a_number_for_each_value():
    columns = [DataColumn("a"), COLOUR]
    assert read(columns, [[5, 1], [6, 0]]) == [[5, 0, 1], [6, 1, 0]]
    columns = [DataColumn("colour", "category", categories=("blue", "red"), missing="mean")]
    assert read(columns, [[1], [NAN]]) == [[0, 1], [0, 0]]


def test_missing_values_are_filled_and_marked():
    mean = DataColumn("a", mean=9.0, missing="mean", mask=True)
    previous = DataColumn("a", mean=9.0, missing="previous", mask=True)
    rows = [[NAN], [1], [NAN], [NAN], [2]]
    assert read([mean], rows) == [[9, 1], [1, 0], [9, 1], [9, 1], [2, 0]]
    assert read([previous], rows) == [[9, 1], [1, 0], [1, 1], [1, 1], [2, 0]]
    assert read([previous], [rows, rows[1:] + rows[:1]])[0] == read([previous], rows)


@given(st.lists(st.sampled_from([NAN, 1.0, 2.0, 3.0]), min_size=1, max_size=12))
def test_previous_is_the_loop_over_the_steps(values):
    expected, last = [], 7.0
    for value in values:
        last = last if value != value else value
        expected.append([last])
    assert read([DataColumn("a", mean=7.0, missing="previous")], [[value] for value in values]) == expected


def test_scaling_leaves_missing_values_and_categories_out():
    columns = [DataColumn("a", missing="mean"), DataColumn("b", missing="mean"), COLOUR]
    a, b, colour = scaled_columns(columns, np.array([[1, 5, 0], [NAN, 7, 1], [3, 9, 1]]))
    assert (a.mean, a.deviation, a.mask) == (2, 1, True)
    assert (b.mean, b.mask) == (7, False)
    assert colour == COLOUR


def schema_of(*columns, **options):
    targets = (DataColumn("y", mean=10.0, deviation=2.0),)
    return DataSchema("regression", "last", columns, targets, **options)


def test_a_schema_comes_back_from_json():
    schema = schema_of(
        DataColumn("a", mean=1.0, deviation=2.0, missing="previous", mask=True),
        COLOUR,
        DataColumn("time gap", "gap"),
        time_unit="timestamp",
        time_step=60.0,
    )
    assert DataSchema.from_dict(schema.to_dict()) == schema
    assert schema.width == 5
    assert schema.read_names == ["a", "a missing", "colour: blue", "colour: red", "time gap"]
    assert [each.tolist() for each in schema.input_scale] == [[1, 0, 0, 0, 0], [2, 1, 1, 1, 1]]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_table_is_read_as_its_numbers(library):
    frames = pytest.importorskip(library)
    schema = schema_of(
        DataColumn("a", mean=1.0, missing="mean", mask=True),
        COLOUR,
        DataColumn("when gap", "gap", deviation=60.0),
        sequence="id",
        time="when",
        time_unit="timestamp",
        time_step=60.0,
    )
    torch.manual_seed(0)
    predictor = Predictor(SequenceModel(create("gru", schema.width, 4), 1, readout="last"), schema)
    table = frames.DataFrame(
        {
            "id": ["p", "p", "q", "p"],
            "when": ["2024-01-01 10:02", "2024-01-01T10:00", "2024-01-01 09:00", "2024-01-01 10:01Z"],
            "colour": ["red", "blue", "blue", "blue"],
            "a": [3.0, 1.0, 5.0, None],
        }
    )
    p = [[1, 0, 0], [NAN, 0, 60], [3, 1, 60]]
    expected = predictor.predict([np.array(p), np.array([[5.0, 0, 0]])])
    np.testing.assert_allclose(predictor.predict(table), expected, rtol=1e-6)
    wrong = frames.DataFrame({"a": [1.0], "colour": ["green"], "when": [5]})
    sentence = r"^row 0 of column 'when' holds '5', where a time such as 2024-01-31 12:00:00 is expected$"
    with pytest.raises(ValueError, match=sentence):
        predictor.predict(wrong)
    wrong = frames.DataFrame({"a": [1.0], "colour": ["green"], "when": ["2024-01-01"]})
    sentence = r"^row 0 of column 'colour' holds 'green', and the values in training were blue, red$"
    with pytest.raises(ValueError, match=sentence):
        predictor.predict(wrong)
    with pytest.raises(ValueError, match=r"^X must hold whole numbers from 0 to 1 in colour, .* has 2.0$"):
        predictor.predict(np.array([[[1.0, 2, 0]]]))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"missing": "zero"}, r"missing of column 'a' must be one of mean, previous, got 'zero'"),
        ({"mask": True}, r"mask of column 'a' must be false, or true for a number with missing values"),
        ({"kind": "time"}, r"kind of column 'a' must be one of number, category, gap, got 'time'"),
    ],
)
def test_wrong_columns(options, sentence):
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        DataColumn("a", **options)
