"""Tables as people have them: times, words, missing values, Parquet."""

from __future__ import annotations

import math

import numpy as np
import pytest
from damage import answer_or_sentence, refusal, same_folder
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.data import read_table
from evenflow.lab.data.file_blocks import file_blocks
from evenflow.lab.tasks.own_division import Division
from evenflow.lab.tasks.own_parts import divide

NAN = float("nan")
MESSY = """id,when,ax,event,target
a,2024-01-01 10:02:00,3,run,up
a,2024-01-01 10:00:00,1,rest,up
b,2024-01-01 10:00:30,5,run,down
a,2024-01-01 10:01:00,,rest,up
b,2024-01-01 11:00:30,NA,,down
b,2024-01-01 11:01:30,7,jump,down
"""
LAYOUT = {"sequence": "id", "time": "when", "missing": "mean"}


@pytest.fixture
def csv(tmp_path):
    def write(text):
        path = tmp_path / "a.csv"
        path.write_text(text)
        return path

    return write


def test_times_words_and_missing_values(csv):
    own = read_table(csv(MESSY), **LAYOUT, gap=True)
    assert own.names == ("ax", "event", "when gap")
    assert [column.kind for column in own.columns] == ["number", "category", "gap"]
    assert own.columns[1].categories == ("jump", "rest", "run")
    np.testing.assert_array_equal(own.inputs[0], [[1, 1, 0], [NAN, 1, 60], [3, 2, 60]])
    np.testing.assert_array_equal(own.inputs[1], [[5, 2, 0], [NAN, NAN, 3600], [7, 0, 60]])
    assert own.clock.unit == "timestamp"
    assert (own.clock.step, own.clock.gaps, own.clock.longest) == (60, 1, 3600)
    assert own.clock.note() == (
        "1 gap in 'when': steps are 60 s apart, the longest time between two is 3600 s, before line 6"
    )


def test_numbers_as_times(csv):
    own = read_table(csv("time,a\n3,30\n1,10\n2,20\n"))
    assert (own.inputs[0][:, 0].tolist(), own.clock.unit, own.clock.note()) == ([10, 20, 30], "number", "")


@pytest.mark.parametrize(
    ("text", "layout", "wrong"),
    [
        ("time,a\n1,1\nnoon,2\n", {},
         "line 3, column 'time', holds 'noon', where a number is expected; ignore=time leaves the column out"),
        ("time,a\n1,1\n2,2\n1,3\n", {}, "line 4, column 'time', goes back to a time that its sequence has already: "
         "name the column that tells sequences apart, or ignore this one"),
        ("a,b\n1,on\n2,3\n", {}, "line 2, column 'b', holds 'on', which is not a number"),
        ("a,b\n" + "1,on\n" * 512 + "2,3\n", {},
         "line 514, column 'b', holds the number '3', and line 2 the word 'on'"),
        ("a,b\n1,on\n2,\n", {}, "line 3, column 'b', has a missing value; missing=mean or missing=previous fills it"),
        ("a,b\n1,\n2,\n", {"missing": "mean"}, "column 'b' has no values: ignore=b"),
        ("a\n" + "".join(f"w{n}\n" for n in range(51)), {}, "column 'a' holds 51 different words, and at most 50 can "
         "be inputs: embed=8 allows more, ignore=a leaves it out, time=a if it says when"),
        ("a\non\noff\n", {}, "it has no column of numbers, and predicting the next step needs one"),
        ("a,b\n1,2\n3,4\n", {"gap": True}, "it has no column 'time', found 'a', 'b'"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_read(csv, text, layout, wrong):
    path = csv(text)
    assert refusal(read_table, path, **layout) == f"cannot read {str(path)!r}: {wrong}"


def schema_of(path, **layout):
    own = read_table(path, **layout)
    places = {"sequence": layout.get("sequence", "sequence"), "time": layout.get("time", "time")}
    return own, divide(own, str(path), Division(), None, None, ["target"], places).schema


def test_prediction_reads_what_training_reads(csv):
    path = csv(MESSY)
    own, schema = schema_of(path, **LAYOUT, gap=True)
    (block,) = file_blocks(path, schema, learned=True)
    for mine, theirs in zip(block.inputs, own.inputs, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert [int(y) for y in block.targets] == own.targets.tolist()


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("a,2024-01-01 10:00:00,1,rest", "a,2024-01-01 10:00:00,1,swim",
         "line 3, column 'event', holds 'swim', and the values in training were jump, rest, run"),
        ("2024-01-01 10:02:00", "1704103320",
         "line 2, column 'when', holds '1704103320', where a time such as 2024-01-31 12:00:00 is expected"),
        ("when", "date", "it has no column 'when', found 'id', 'date', 'ax', 'event', 'target'"),
        ("event", "act", "it has no column 'event', found 'id', 'when', 'ax', 'act', 'target'"),
        (",5,", ",five,", "line 4, column 'ax', holds 'five', which is not a number"),
    ],
)  # fmt: skip
def test_files_that_differ_from_training(csv, tmp_path, old, new, wrong):
    path = csv(MESSY)
    _, schema = schema_of(path, **LAYOUT, gap=True)
    path.write_text(MESSY.replace(old, new))
    assert refusal(lambda: list(file_blocks(path, schema, learned=False))) == f"cannot read {str(path)!r}: {wrong}"


def test_other_units_of_time(csv):
    rows = [(n, math.sin(n)) for n in range(250)]
    _, schema = schema_of(csv("time,a\n" + "".join(f"{t},{a}\n" for t, a in rows)))
    path = csv("time,a\n" + "".join(f"{1000 * t},{a}\n" for t, a in rows))
    said = (
        "line 2, column 'time', has steps 1000 apart, and in training they were 1 apart: the unit of time must be the"
    )
    assert refusal(lambda: list(file_blocks(path, schema, learned=False))) == f"cannot read {str(path)!r}: {said} same"


def test_a_large_series_keeps_its_gaps(csv, monkeypatch):
    """Blocks of a series have the gaps of the whole."""
    from evenflow.lab.data import table_blocks, table_file

    draw = np.random.RandomState(0)
    times = np.cumsum(draw.uniform(0.5, 2, 700)).round(3)
    path = csv("time,a\n" + "".join(f"{t},{a}\n" for t, a in zip(times, draw.randn(700), strict=True)))
    own, schema = schema_of(path, gap=True)
    monkeypatch.setattr(table_blocks, "BLOCK_ROWS", 130)
    monkeypatch.setattr(table_file, "ROWS", 50)
    blocks = list(file_blocks(path, schema, learned=False))
    assert len(blocks) > 2
    np.testing.assert_allclose(np.concatenate([x for block in blocks for x in block.inputs]), own.inputs[0], rtol=1e-6)
    shuffled = path.read_text().splitlines()
    path.write_text("\n".join([*shuffled[:400], shuffled[5], *shuffled[401:]]))
    assert "column 'time', goes back in time" in refusal(lambda: list(file_blocks(path, schema, learned=False)))


def test_parquet_is_read_as_csv_is(csv, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = csv(MESSY)
    table = pandas.read_csv(path, parse_dates=["when"])
    table.to_parquet(tmp_path / "a.parquet")
    first, second = (read_table(file, **LAYOUT, gap=True) for file in (path, tmp_path / "a.parquet"))
    assert first.columns == second.columns
    for mine, theirs in zip(first.inputs, second.inputs, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (first.targets.tolist(), first.labels) == (second.targets.tolist(), second.labels)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and so on")
    assert refusal(read_table, tmp_path / "a.parquet").startswith(
        f"cannot read {str(tmp_path / 'a.parquet')!r}: it is not a Parquet file ("
    )


def test_a_parquet_file_with_a_flipped_bit_is_read_or_refused(tmp_path):
    """The 142nd byte ended in an ArrowException, which is no ValueError and no OSError."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    pandas.DataFrame({"sequence": [0, 0, 1, 1], "y0": [1.0, 1.0, 2.0, 2.0], "word": list("abab")}).to_parquet(path)
    good = path.read_bytes()
    refused = 0
    for at in range(4, 400):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x80]) + good[at + 1 :])
        refused += answer_or_sentence(lambda: read_table(path, target="y0"), path) is None
    assert refused > 50


CELLS = st.sampled_from(
    ["1", "-2.5", "1e39", "", "nan", "NA", "on", "off", "2024-01-01", "2024-13-01", "0", " 7 ", "é"]
)


@given(
    st.lists(st.sampled_from(["time", "sequence", "target", "a", "b"]), min_size=1, max_size=5, unique=True),
    st.integers(0, 8).flatmap(lambda n: st.lists(st.lists(CELLS, min_size=5, max_size=5), min_size=n, max_size=n)),
    st.sampled_from([{}, {"missing": "previous"}, {"missing": "mean", "gap": True}, {"ignore": "a"}]),
)
@same_folder
def test_any_table_gives_sequences_or_one_sentence(csv, names, rows, layout):
    path = csv("\n".join([",".join(names), *(",".join(row[: len(names)]) for row in rows)]) + "\n")
    own = answer_or_sentence(lambda: read_table(path, **layout), path)
    if own is None:
        return
    filled = [column.missing is not None for column in own.columns]
    for x in own.inputs:
        assert x.shape[1] == len(own.columns)
        assert np.isfinite(x[:, [not each for each in filled]]).all()


def test_a_number_before_a_control_character_is_a_number(csv):
    """Where it counts as white space the cell was a word for one function and a number for the next."""
    message = refusal(read_table, csv("0\x11\n\n9\x1d\n)9"), kind="next")
    assert "line 3, column '0\\x11', holds '9" in message
