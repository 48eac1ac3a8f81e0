from __future__ import annotations

import gzip

import numpy as np
import pytest
from damage import answer_or_sentence, damaged, refusal, same_folder
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.data import own_sequences, padded, read_table, table_file, text_stream

CLASSES = "sequence,time,a,b,target\none,1,0.5,1,up\none,2,0.25,2,up\ntwo,1,-1,3,down\n"
STEPS = "sequence,a,target\n1,1,0\n1,2,1\n2,3,0\n"
FILL = "; missing=mean or missing=previous fills it"
SERIES = "a,b\n1,2\n3,4\n5,6\n"


@pytest.fixture
def csv(tmp_path):
    def write(text, name="a.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def lists(arrays):
    return [array.tolist() for array in arrays]


def test_a_class_a_sequence(csv):
    own = read_table(csv(CLASSES))
    assert (own.kind, own.readout, own.names, own.labels, own.outputs) == (
        "classification",
        "last",
        ("a", "b"),
        ("down", "up"),
        2,
    )
    assert lists(own.inputs) == [[[0.5, 1], [0.25, 2]], [[-1, 3]]]
    assert own.targets.tolist() == [1, 0]
    assert (own.inputs[0].dtype, own.targets.dtype) == (np.float32, np.int64)
    assert own.lengths.tolist() == [2, 1]
    assert own.test is None


def test_a_class_a_step(csv):
    own = read_table(csv(STEPS))
    assert (own.kind, own.readout, own.labels, own.outputs) == ("classification", "every", (0, 1), 2)
    assert lists(own.targets) == [[0, 1], [0]]


def test_a_number_a_sequence(csv):
    own = read_table(csv("sequence,a,target\n1,1,0.5\n1,2,0.5\n2,3,1\n"))
    assert (own.kind, own.readout, own.labels, own.outputs) == ("regression", "last", (), 1)
    assert own.targets.tolist() == [[0.5], [1]]
    assert own.targets.dtype == np.float32


def test_numbers_in_one_long_series(csv):
    """Without a column of sequences a target that never changes is still one a step."""
    own = read_table(csv("a,p,q\n1,0.5,1\n2,0.5,1\n"), target="p, q")
    assert (own.kind, own.readout, own.names, own.outputs) == ("regression", "every", ("a",), 2)
    assert lists(own.targets) == [[[0.5, 1], [0.5, 1]]]


def test_the_next_step(csv):
    own = read_table(csv(SERIES))
    assert (own.kind, own.readout, own.targets, own.outputs) == ("next", "every", None, 2)
    assert lists(own.inputs) == [[[1, 2], [3, 4], [5, 6]]]
    assert len(read_table(csv("sequence,a\nx,1\ny,2\nx,3\ny,4\n")).inputs) == 2


def test_steps_of_a_sequence_need_not_follow_each_other(csv):
    own = read_table(csv("sequence,a,target\nx,1,0\ny,2,1\nx,3,0\ny,4,1\nx,5,0\n"))
    assert lists(own.inputs) == [[[1], [3], [5]], [[2], [4]]]
    assert own.targets.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("targets", "kind", "labels"),
    [
        pytest.param(["10", "9", "+9"], "classification", (9, 10), id="whole numbers"),
        pytest.param(["b", "a", "10"], "classification", ("10", "a", "b"), id="words"),
        pytest.param(["1", "2.0", "3"], "regression", (), id="a decimal point"),
        pytest.param(["1", "2e3", "3"], "regression", (), id="an exponent"),
    ],
)
def test_what_targets_look_like(csv, targets, kind, labels):
    own = read_table(csv("sequence,a,target\n" + "".join(f"{i},0,{target}\n" for i, target in enumerate(targets))))
    assert (own.kind, own.labels) == (kind, labels)


def test_choices_of_the_user(csv):
    path = csv("sequence,a,target\n1,1,3\n1,2,3\n2,3,4\n2,3,4\n")
    assert read_table(path, kind="regression").targets.tolist() == [[3], [4]]
    assert lists(read_table(path, readout="every").targets) == [[0, 0], [1, 1]]
    own = read_table(path, kind="next")
    assert (own.kind, own.targets, own.names) == ("next", None, ("a",))
    own = read_table(csv("id,y,a\n1,0.5,2\n2,1.5,3\n"), sequence="id", target="y", kind="classification")
    assert (own.labels, own.names) == (("0.5", "1.5"), ("a",))


@pytest.mark.parametrize(
    "text",
    [
        "sequence;a;target\n1;2;x\n2;3;y\n",
        "sequence\ta\ttarget\n1\t2\tx\n2\t3\ty",
        '\r\n"sequence", a ,target\r\n1,"2",x\r\n\r\n 2 ,3, y\r\n',
        "\ufeffsequence,a,target\r1,2,x\r2,3,y\r",
    ],
    ids=["semicolons", "tabs", "quotes and blanks", "byte order mark and CR"],
)
def test_ways_to_write_csv(csv, text):
    for path in (csv(text), csv(gzip.compress(text.encode()), "a.csv.gz")):
        own = read_table(path)
        assert (own.names, own.labels, lists(own.inputs)) == (("a",), ("x", "y"), [[[2]], [[3]]])


def test_no_row_is_lost_or_moved(csv):
    """More rows than are turned into numbers at a time, by a lot and by one."""
    for rows in (511, 512, 513, 5000):
        path = csv("sequence,a,target\n" + "".join(f"{i % 7},{i},{i % 7}\n" for i in range(rows)))
        own = read_table(path)
        assert sum(map(len, own.inputs)) == rows
        for place, sequence in enumerate(own.inputs):
            assert sequence[:, 0].tolist() == list(range(place, rows, 7))
        assert own.targets.tolist() == list(range(7))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        pytest.param("\n\n", "there are no columns in it", id="only empty lines"),
        pytest.param("a,b\n", "it has a line of names and no rows", id="no rows"),
        pytest.param("1,2\n3,4\n", "its first line must name the columns, got numbers ('1')", id="no names"),
        pytest.param("a,,b\n1,2,3\n", "column 2 has no name", id="a column without a name"),
        pytest.param("a,b,a\n1,2,3\n", "two columns are called 'a'", id="two of a name"),
        pytest.param("sequence,target\n1,2\n", "it has no input column, only 'sequence', 'target'", id="no inputs"),
        pytest.param("a,b\n1,2\n3\n", "line 3 has 1 cells, the first line has 2", id="ragged"),
        pytest.param(
            "a,b\n1,2\n\n3,4,5\n", "line 4 has 3 cells, the first line has 2", id="ragged behind an empty line"
        ),
        pytest.param("a,b\n1,2\n3,x\n", "line 3, column 'b', holds 'x', which is not a number", id="not a number"),
        pytest.param("a,b\n1,2\n,4\n", f"line 3, column 'a', has a missing value{FILL}", id="missing value"),
        pytest.param("a,b\n1,nan\n3,4\n", f"line 2, column 'b', has a missing value{FILL}", id="NaN"),
        pytest.param(
            "a,b\n1,2\n3,1e40\n",
            "line 3, column 'b', holds '1e40', and only finite float32 numbers will do",
            id="large",
        ),
        pytest.param('a,b\n1,"2\n3,4\n', "line 3 is not CSV (unexpected end of data)", id="open quote"),
        pytest.param(b"a,b\n1,2\n\xe9,4\n", "the text after line 0 is not UTF-8", id="not UTF-8"),
        pytest.param("a\n1\n", "the sequence of line 2 has one step, and predicting the next needs two", id="one step"),
        pytest.param(
            "sequence,a\nx,1\ny,1\nx,2\n",
            "the sequence of line 3 has one step, and predicting the next needs two",
            id="one of two",
        ),
        pytest.param("sequence,a\nx,1\n ,2\n", "line 3, column 'sequence', has a missing value", id="no sequence"),
        pytest.param(
            "sequence,a,target\nx,1,u\nx,2,\n", "line 3, column 'target', has a missing value", id="no target"
        ),
        pytest.param(
            "sequence,a,target\nx,1,0.5\ny,2,0.7o\n",
            "line 3, column 'target', holds '0.7o', which is not a number",
            id="a slip among numbers is no word",
        ),
        pytest.param(
            "sequence,a,target\nx,1,u\ny,2,u\n",
            "every target is 'u', and classification needs two classes",
            id="one class",
        ),
    ],
)
def test_bad_files(csv, text, wrong):
    path = csv(text)
    assert refusal(read_table, path) == f"cannot read {str(path)!r}: {wrong}"


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        pytest.param({"sequence": "id"}, "it has no column 'id', found 'sequence', 'a', 'target'", id="sequence"),
        pytest.param({"target": "y"}, "it has no column 'y', found 'sequence', 'a', 'target'", id="target"),
        pytest.param(
            {"target": "target,y"}, "it has no column 'y', found 'sequence', 'a', 'target'", id="second target"
        ),
        pytest.param(
            {"readout": "last"}, "line 3 changes the target of its sequence, which for readout last has one", id="last"
        ),
        pytest.param(
            {"target": "a,target", "kind": "classification"},
            "it has no input column, only 'sequence', 'a', 'target'",
            id="all",
        ),
    ],
)
def test_choices_that_do_not_fit(csv, options, wrong):
    path = csv(STEPS)
    assert refusal(read_table, path, **options) == f"cannot read {str(path)!r}: {wrong}"


def test_kinds_that_do_not_fit(csv):
    path = csv(SERIES)
    assert refusal(read_table, path, kind="regression").endswith(": it has no column 'target', found 'a', 'b'")
    path = csv(CLASSES)
    said = "line 2, column 'target', holds 'up', which is not a number"
    assert refusal(read_table, path, kind="regression").endswith(f": {said}")
    said = "classification needs one target column, got 2"
    assert refusal(read_table, path, target="a,target", kind="classification").endswith(f": {said}")


def test_words_that_are_no_choice(csv):
    path = csv(CLASSES)
    assert (
        refusal(read_table, path, kind="class") == "kind must be one of classification, regression, next, got 'class'"
    )
    assert refusal(read_table, path, readout="all") == "readout must be one of last, every, got 'all'"
    assert refusal(read_table, path, kind="next", readout="last") == "readout must be every for kind next, got 'last'"


def test_tables_that_expand_too_much_and_lines_that_are_too_long(tmp_path, monkeypatch):
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1.5,2.5\n" * 5000))
    assert len(read_table(path).inputs[0]) == 5000
    monkeypatch.setattr(text_stream, "EXPANDED", 20_000)
    too_large = "it expands to more than 20,000 bytes, 10 times its size: unpack it"
    assert refusal(read_table, path) == f"cannot read '{path}': {too_large}"
    monkeypatch.setattr(text_stream, "LONGEST_LINE", 8)
    assert refusal(read_table, path) == f"cannot read '{path}': line 2 has 8 characters or more"


def test_a_wide_table_is_parsed_in_small_pieces(csv, monkeypatch):
    rows = "\n".join(f"{row},{row % 3},word{row % 2}" for row in range(40))
    path = csv("a,b,c\n" + rows + "\n")
    whole = read_table(path)
    monkeypatch.setattr(table_file, "CELLS", 7)
    pieces = read_table(path)
    assert pieces.columns == whole.columns
    assert np.array_equal(pieces.inputs[0], whole.inputs[0])
    assert whole.inputs[0].dtype == np.float32


def test_numbers_as_classes_by_mistake(csv, monkeypatch):
    monkeypatch.setattr(own_sequences, "MOST_CLASSES", 1000)
    path = csv("sequence,a,target\n" + "".join(f"{i},0,{i}\n" for i in range(1001)))
    said = "its targets are 1,001 classes; for numbers to predict choose regression"
    assert refusal(read_table, path).endswith(f": {said}")
    assert read_table(path, kind="regression").targets.shape == (1001, 1)


def test_padding():
    sequences = [np.ones((2, 3), np.float32), np.full((1, 3), 2, np.float32)]
    array = padded(sequences, 4)
    assert (array.shape, array.dtype) == ((4, 2, 3), np.float32)
    assert array[..., 0].tolist() == [[1, 2], [1, 0], [0, 0], [0, 0]]
    assert padded([np.arange(3), np.arange(2)]).tolist() == [[0, 0], [1, 1], [2, 0]]
    assert refusal(padded, sequences, 1) == "steps must be at least the longest sequence's 2, got 1"


@pytest.mark.parametrize("text", [CLASSES, STEPS, SERIES], ids=["classes", "steps", "series"])
def test_damaged_text_gives_sequences_or_one_sentence(csv, text):
    @same_folder
    @given(st.one_of(damaged(text.encode()), st.binary(min_size=1, max_size=60)))
    def check(broken):
        path = csv(broken)
        own = answer_or_sentence(lambda: read_table(path), path)
        if own is not None:
            assert all(np.isfinite(sequence).all() and sequence.shape[1] == len(own.names) for sequence in own.inputs)
            if own.readout == "every" and own.targets is not None:
                assert [len(target) for target in own.targets] == own.lengths.tolist()

    check()
