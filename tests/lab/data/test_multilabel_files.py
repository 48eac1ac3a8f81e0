from __future__ import annotations

import numpy as np
import pytest
from damage import answer_or_sentence, damaged, refusal, same_folder
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.data.multilabel_files import read_multilabel, read_sparse

TRAIN = "3 4 5\n0,4 0:0.5 3:-2\n 1:1e-1\n2\n"
TEST = "1 4 5\n1 2:7\n"


def test_bibtex(data):
    """Sizes, and 2.40 labels and 68.7 features a row on average."""
    sets = read_multilabel(data, "bibtex")
    assert [array.shape for array in sets] == [(4880, 1836), (4880, 159), (2515, 1836), (2515, 159)]
    assert [array.dtype for array in sets] == [np.float32, np.uint8, np.float32, np.uint8]
    x, y = np.concatenate([sets.x_train, sets.x_test]), np.concatenate([sets.y_train, sets.y_test])
    assert set(np.unique(x)) == {0, 1}
    assert x.sum(1).mean() == pytest.approx(68.7, abs=0.05)
    assert y.sum(1).mean() == pytest.approx(2.40, abs=0.005)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "multilabel").mkdir()
    return tmp_path / "multilabel"


@pytest.mark.parametrize("name", ["mediamill", "bibtex"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_sparse_text(folder, name, newline):
    (folder / f"{name}_train.txt").write_bytes(TRAIN.replace("\n", newline).encode())
    (folder / f"{name}_test.txt").write_bytes(TEST.replace("\n", newline).encode())
    sets = read_multilabel(folder.parent, name)
    np.testing.assert_array_equal(sets.x_train, np.float32([[0.5, 0, 0, -2], [0, 0.1, 0, 0], [0, 0, 0, 0]]))
    assert sets.y_train.tolist() == [[1, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]]
    assert (sets.x_test.tolist(), sets.y_test.tolist()) == ([[0, 0, 7, 0]], [[0, 1, 0, 0, 0]])
    assert (sets.x_train.dtype, sets.y_train.dtype) == (np.float32, np.uint8)


def test_a_row_may_start_with_its_features(folder):
    """Rows without labels, where the blank in front was lost."""
    (folder / "a.txt").write_text("2 2 2\n1:3\n1 0:1\n")
    x, y = read_sparse(folder / "a.txt")
    assert (x.tolist(), y.tolist()) == ([[0, 3], [1, 0]], [[0, 0], [0, 1]])


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        pytest.param(
            "0,4 0:0.5\n", "line 1 must give the numbers of rows, features and labels, got '0,4 0:0.5'", id="no sizes"
        ),
        pytest.param(
            "2 -1 3\n", "line 1 must give the numbers of rows, features and labels, got '2 -1 3'", id="negative"
        ),
        pytest.param(
            "1 0 3\n0\n", "line 1 gives 1 rows of 0 features and 3 labels, which will not do", id="no features"
        ),
        pytest.param(
            "99999999999 99999 3\n0\n",
            "line 1 gives 99999999999 rows of 99999 features and 3 labels, which will not do",
            id="claims a terabyte",
        ),
        pytest.param("3 4 5\n0 1:1\n", "line 1 says 3 rows, and 1 follow", id="rows missing"),
        pytest.param("1 4 5\n0 1:1\n0 1:1\n", "line 1 says 1 rows, and 2 follow", id="too many rows"),
        pytest.param(
            "2 4 5\n0 1:1\n5 1:1\n", "line 3 holds label '5', and labels are whole numbers from 0 to 4", id="label 5"
        ),
        pytest.param(
            "1 4 5\n0,,1 1:1\n", "line 2 holds label '', and labels are whole numbers from 0 to 4", id="no label"
        ),
        pytest.param("1 4 5\nx 1:1\n", "line 2 holds label 'x', and labels are whole numbers from 0 to 4", id="word"),
        pytest.param(
            "1 4 5\n0 4:1\n", "line 2 holds feature '4', and features are whole numbers from 0 to 3", id="feature 4"
        ),
        pytest.param(
            "1 4 5\n0 -1:1\n", "line 2 holds feature '-1', and features are whole numbers from 0 to 3", id="feature -1"
        ),
        pytest.param("1 4 5\n0 1:1 2\n", "line 2 holds '2', which is not feature:value", id="no value"),
        pytest.param("1 4 5\n0 1:\n", "line 2 has a missing value", id="empty value"),
        pytest.param("1 4 5\n0 1:a\n", "line 2 holds 'a', which is not a number", id="not a number"),
        pytest.param("1 4 5\n0 0:1 1:nan\n", "line 2 holds 'nan', and only finite float32 numbers will do", id="NaN"),
        pytest.param("1 4 5\n0 1:2:3\n", "line 2 holds '2:3', which is not a number", id="two colons"),
    ],
)
def test_bad_text(folder, text, wrong):
    path = folder / "mediamill_train.txt"
    path.write_text(text)
    assert refusal(read_multilabel, folder.parent, "mediamill") == f"cannot read {str(path)!r}: {wrong}"


def test_parts_that_differ(folder):
    (folder / "mediamill_train.txt").write_text(TRAIN)
    path = folder / "mediamill_test.txt"
    path.write_text("1 4 6\n0 1:1\n")
    said = "it has 4 features and 6 labels, the rows to train on have 4 and 5"
    assert refusal(read_multilabel, folder.parent, "mediamill") == f"cannot read {str(path)!r}: {said}"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        pytest.param({"n_features": np.array(17)}, "'x_train' is not 17 packed bits a row", id="features"),
        pytest.param({"y_test": np.zeros((2, 1), np.uint8)}, "'y_test' is not 3 packed bits a row", id="rows"),
        pytest.param({"x_test": np.zeros((1, 2))}, "'x_test' is not 9 packed bits a row", id="not bits"),
        pytest.param({"x_test": np.array(0, np.uint8)}, "'x_test' is not 9 packed bits a row", id="no rows"),
        pytest.param(
            {"n_labels": np.array([3])}, "'n_features' and 'n_labels' must be one whole number each", id="size"
        ),
        pytest.param({"n_labels": np.array(0)}, "'n_features' and 'n_labels' must be one whole number each", id="zero"),
    ],
)
def test_bad_bits(folder, change, wrong):
    sizes = {"n_features": np.array(9), "n_labels": np.array(3)}
    good = sizes | {
        f"{n}_{p}": np.full((r, w), 255, np.uint8)
        for p, r in (("train", 2), ("test", 1))
        for n, w in (("x", 2), ("y", 1))
    }
    path = folder / "bibtex.npz"
    np.savez(path, **good)
    assert [array.shape for array in read_multilabel(folder.parent, "bibtex")] == [(2, 9), (2, 3), (1, 9), (1, 3)]
    np.savez(path, **(good | change))
    assert refusal(read_multilabel, folder.parent, "bibtex") == f"cannot read {str(path)!r}: {wrong}"


def test_unknown_and_missing(tmp_path):
    assert refusal(read_multilabel, tmp_path, "bibtext") == "unknown multi-label set 'bibtext', did you mean bibtex?"
    for name, file in (("bibtex", "bibtex.npz"), ("mediamill", "mediamill_train.txt")):
        path = tmp_path / "multilabel" / file
        assert refusal(read_multilabel, tmp_path, name) == f"cannot read {str(path)!r}: there is no such file"


@same_folder
@given(st.one_of(damaged(TRAIN.encode()), st.binary(min_size=1, max_size=60)))
def test_damaged_text_gives_rows_or_one_sentence(tmp_path, broken):
    path = tmp_path / "a.txt"
    path.write_bytes(broken)
    rows = answer_or_sentence(lambda: read_sparse(path), path)
    if rows is not None:
        x, y = rows
        assert len(x) == len(y)
        assert np.isfinite(x).all()
        assert set(np.unique(y)) <= {0, 1}
