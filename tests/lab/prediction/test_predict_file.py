"""Files of predictions: the same numbers as from arrays, in blocks of any size, complete or not there."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_files import predictor_of, sequences, write_csv

from evenflow.lab.data import table_blocks, table_file
from evenflow.lab.prediction import evaluate_file, predict_file

ROUNDING = 1e-5  # float32, summed in another order for another batch


def table(path) -> tuple[list[str], list[list[str]]]:
    header, *rows = csv.reader(path.open())
    return header, rows


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, as a file larger than the memory needs many."""
    monkeypatch.setattr(table_blocks, "BLOCK_ROWS", 3)
    monkeypatch.setattr(table_file, "ROWS", 2)


@pytest.mark.parametrize("size", ["one block", "many blocks"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("readout", ["last", "every"])
def test_predictions_are_those_of_arrays(kind, readout, size, tmp_path, request):
    if size == "many blocks":
        request.getfixturevalue("small_blocks")
    made, inputs = predictor_of(kind, readout), sequences()
    source = write_csv(tmp_path / "new.csv", inputs)
    count = predict_file(made, source, tmp_path / "out.csv")
    header, rows = table(tmp_path / "out.csv")
    expected = made.predict(inputs)
    places = [(f"s{n}", step) for n, each in enumerate(inputs) for step in range(len(each))]
    if readout == "last":
        places = [(f"s{n}", None) for n in range(len(inputs))]
    flat = np.concatenate([np.atleast_1d(each) for each in expected])
    assert count == len(rows) == len(places)
    start = ["sequence", *(["step"] if readout == "every" else [])]
    assert [row[: len(start)] for row in rows] == [
        [name, *([] if step is None else [str(step)])] for name, step in places
    ]
    if kind == "classification":
        assert header == [*start, "prediction", "probability_rest", "probability_run", "probability_walk"]
        assert [row[len(start)] for row in rows] == flat.tolist()
        likely = np.concatenate([np.atleast_2d(each) for each in made.predict_proba(inputs)])
        np.testing.assert_allclose(np.array([row[-3:] for row in rows], float), likely, atol=ROUNDING)
    else:
        assert header == [*start, "speed"]
        np.testing.assert_allclose([float(row[-1]) for row in rows], flat, rtol=ROUNDING)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "out.csv"]


def test_one_long_series_is_cut_as_in_training(tmp_path, small_blocks):
    made, (series,) = predictor_of("next", "every", length=5), [np.concatenate(sequences())]
    source = write_csv(tmp_path / "new.csv", [series], named=False)
    predict_file(made, source, tmp_path / "out.csv")
    header, rows = table(tmp_path / "out.csv")
    pieces = [series[first : first + 5] for first in range(0, len(series), 5)]
    assert header == ["step", "ax", "ay"]
    assert [int(row[0]) for row in rows] == list(range(1, len(series) + 1))  # the step that is predicted
    found = np.array([row[1:] for row in rows], float)
    np.testing.assert_allclose(found, np.concatenate(made.predict(pieces)), rtol=ROUNDING)


@pytest.mark.parametrize("length", [None, 4])
def test_forecasts(length, tmp_path, small_blocks):
    made, inputs = predictor_of("next", "every", length=length), sequences()
    predict_file(made, write_csv(tmp_path / "new.csv", inputs), tmp_path / "out.csv", horizon=3)
    header, rows = table(tmp_path / "out.csv")
    assert header == ["sequence", "ahead", "ax", "ay"]
    assert [row[:2] for row in rows] == [[f"s{n}", str(ahead)] for n in range(len(inputs)) for ahead in (1, 2, 3)]
    expected = made.forecast(inputs, 3).reshape(-1, 2)
    np.testing.assert_allclose(np.array([row[2:] for row in rows], float), expected, rtol=ROUNDING)
    series = np.concatenate(inputs)
    predict_file(made, write_csv(tmp_path / "new.csv", [series], named=False), tmp_path / "out.csv", horizon=3)
    found = np.array([row[1:] for row in table(tmp_path / "out.csv")[1]], float)
    np.testing.assert_allclose(found, made.forecast(series[None], 3)[0], rtol=ROUNDING)


def test_sequences_may_alternate_in_a_small_file(tmp_path):
    made, inputs = predictor_of("classification", "last"), sequences(4)
    steps = sum(map(len, inputs))
    predict_file(made, write_csv(tmp_path / "new.csv", inputs), tmp_path / "a.csv")
    reverse = np.argsort(np.concatenate([np.arange(len(each)) for each in inputs]), kind="stable")
    assert len(reverse) == steps
    predict_file(made, write_csv(tmp_path / "new.csv", inputs, order=reverse), tmp_path / "b.csv")
    assert [row[:2] for row in table(tmp_path / "a.csv")[1]] == [row[:2] for row in table(tmp_path / "b.csv")[1]]


def test_sequences_must_stand_together_in_a_large_one(tmp_path, small_blocks):
    source = tmp_path / "new.csv"
    source.write_text("sequence,ax,ay\n" + "".join(f"{n},1,1\n" for n in "aabbccdda"))
    (tmp_path / "out.csv").write_text("before")
    sentence = (
        r"line 10 continues sequence 'a' after other sequences; in a file of this size the rows of a sequence must"
    )
    with pytest.raises(ValueError, match=sentence):
        predict_file(predictor_of("classification", "last"), source, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2


def test_npz_and_gzip(tmp_path):
    made, x = predictor_of("regression", "last"), np.random.RandomState(0).randn(5, 6, 2) * 20 + [100, -3]
    np.savez(tmp_path / "new.npz", x=x, y=made.predict(x))
    predict_file(made, tmp_path / "new.npz", tmp_path / "a.csv")
    source = write_csv(tmp_path / "new.csv", x)
    (tmp_path / "new.csv.gz").write_bytes(gzip.compress(source.read_bytes()))
    predict_file(made, tmp_path / "new.csv.gz", tmp_path / "b.csv")
    first, second = (np.array([row[1:] for row in table(tmp_path / name)[1]], float) for name in ("a.csv", "b.csv"))
    np.testing.assert_allclose(first, second, rtol=ROUNDING)
    assert evaluate_file(made, tmp_path / "new.npz").errors[0]["rmse"] < 0.01


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is empty"),
        ("sequence,ax,ay\n", "it has a line of names and no rows"),
        ("sequence,ax\na,1\n", "it has no column 'ay', found 'sequence', 'ax'"),
        ("sequence,ax,ay\na,1,nan\n", "line 2, column 'ay', has a missing value"),
        ("sequence,ax,ay\na,1,low\n", "line 2, column 'ay', holds 'low', which is not a number"),
        ("sequence,ax,ay\na,1,2\na,1\n", "line 3 has 2 cells, the first line has 3"),
        ("sequence,ax,ay\na,1,2\n ,1,2\n", "line 3, column 'sequence', has a missing value"),
    ],
)
def test_wrong_files(text, sentence, tmp_path):
    source = tmp_path / "new.csv"
    source.write_text(text)
    with pytest.raises(ValueError, match=f"^cannot read '.*new.csv': {sentence}$"):
        predict_file(predictor_of("classification", "last"), source, tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


def test_text_that_is_not_utf8_and_gzip_that_is_not(tmp_path):
    made = predictor_of("classification", "last")
    (tmp_path / "new.csv").write_bytes(b"sequence,ax,ay\na,1,1\n\xff,1,1\n")
    with pytest.raises(ValueError, match=r"the text after line \d is not UTF-8$"):
        predict_file(made, tmp_path / "new.csv", tmp_path / "out.csv")
    packed = gzip.compress(b"sequence,ax,ay\n" + b"a,1,1\n" * 5000)
    for content, sentence in ((packed[:-20], "it is a truncated gzip file"), (b"text", "it is a damaged gzip file")):
        (tmp_path / "new.csv.gz").write_bytes(content)
        with pytest.raises(ValueError, match=f"{sentence}$"):
            predict_file(made, tmp_path / "new.csv.gz", tmp_path / "out.csv")


CELLS = st.one_of(
    st.sampled_from(["1", "2.5", "-3", "nan", "1e99", "", "walk", '"', "s", "0x1", "１"]), st.text(max_size=3)
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.lists(st.sampled_from(["sequence", "ax", "ay", "time", "activity", "", "b"]), min_size=1, max_size=6),
    rows=st.lists(st.lists(CELLS, max_size=6), max_size=6),
    separator=st.sampled_from([",", ";", "\t"]),
    learned=st.booleans(),
)
def test_no_file_ends_in_a_trace(header, rows, separator, learned, tmp_path):
    source, out = tmp_path / "new.csv", tmp_path / "out.csv"
    out.unlink(missing_ok=True)
    source.write_bytes("\n".join(separator.join(row) for row in [header, *rows]).encode("utf-8", "surrogatepass"))
    made = predictor_of("classification", "last")
    message = None
    try:
        evaluate_file(made, source) if learned else predict_file(made, source, out)
    except ValueError as error:
        message = str(error)
    assert message is None or (message.startswith("cannot read") and len(message.splitlines()) == 1)
    assert out.exists() == (message is None and not learned)


def test_sequences_are_cut_as_in_training(tmp_path):
    predictor = predictor_of("classification", "last", length=3)
    inputs = sequences(9)
    path = write_csv(tmp_path / "new.csv", inputs)
    predict_file(predictor, path, tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    pieces = [(n, first, x[first : first + 3]) for n, x in enumerate(inputs) for first in range(0, len(x), 3)]
    assert [(row["sequence"], int(row["step"])) for row in rows] == [(f"s{n}", first) for n, first, _ in pieces]
    assert [row["prediction"] for row in rows] == predictor.predict([piece for *_, piece in pieces]).tolist()
    table = pytest.importorskip("pandas").read_csv(path)
    assert predictor.predict(table).tolist() == [row["prediction"] for row in rows]
