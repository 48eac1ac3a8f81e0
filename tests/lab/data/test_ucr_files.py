from __future__ import annotations

import numpy as np
import pytest
from damage import answer_or_sentence, damaged, refusal, same_folder
from hypothesis import example, given
from hypothesis import strategies as st

from evenflow.lab.data.ucr_files import names, read_ucr

# name: rows to train on, rows to test on, steps, classes, lowest and highest label
SIZES = {
    "50words": (450, 455, 270, 50, 1, 50),
    "Adiac": (390, 391, 176, 37, 1, 37),
    "ArrowHead": (36, 175, 251, 3, 0, 2),
    "Beef": (30, 30, 470, 5, 1, 5),
    "BeetleFly": (20, 20, 512, 2, 1, 2),
    "CBF": (30, 900, 128, 3, 1, 3),
    "Coffee": (28, 28, 286, 2, 0, 1),
    "Cricket_X": (390, 390, 300, 12, 1, 12),
    "DistalPhalanxOutlineCorrect": (276, 600, 80, 2, 0, 1),
    "DistalPhalanxTW": (139, 400, 80, 6, 3, 8),
    "ECG200": (100, 100, 96, 2, -1, 1),
    "ECG5000": (500, 4500, 140, 5, 1, 5),
    "ECGFiveDays": (23, 861, 136, 2, 1, 2),
    "FaceAll": (560, 1690, 131, 14, 1, 14),
    "FaceFour": (24, 88, 350, 4, 1, 4),
    "FacesUCR": (200, 2050, 131, 14, 1, 14),
    "Gun_Point": (50, 150, 150, 2, 1, 2),
    "InsectWingbeatSound": (220, None, 256, 11, 1, 11),
    "ItalyPowerDemand": (67, 1029, 24, 2, 1, 2),
    "Lighting2": (60, 61, 637, 2, -1, 1),
    "MiddlePhalanxOutlineCorrect": (291, 600, 80, 2, 0, 1),
}


def test_all_sets_are_found(data):
    assert names(data) == sorted(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_the_archive(data, name):
    train, test, steps, classes, lowest, highest = SIZES[name]
    series = read_ucr(data, name)
    assert series.x_train.shape == (train, steps)
    assert (len(series.labels), min(series.labels), max(series.labels)) == (classes, lowest, highest)
    assert (series.x_train.dtype, series.y_train.dtype) == (np.float32, np.int64)
    assert set(series.y_train.tolist()) == set(range(classes))
    raw = np.load(data / "ucr" / f"{name}.npz")
    np.testing.assert_array_equal(np.array(series.labels)[series.y_train], raw["y_train"])
    if test is None:
        assert (series.x_test, series.y_test) == (None, None)
    else:
        assert series.x_test.shape == (test, steps)
        np.testing.assert_array_equal(np.array(series.labels)[series.y_test], raw["y_test"])


X = np.array([[0.5, -1.25, 3.0], [1e-3, 2.0, 4.0], [7.0, 8.0, 9.0]], np.float32)
TEXT = {
    "2015": ("", "2,0.5,-1.25,3\n-1,1.0e-3,2,4\n2,7,8,9\n"),
    "2015 with blanks": (".txt", "   2.0000000e+00   0.5 -1.25 3\n  -1.0000000e+00 1e-3 2 4\n 2 7 8 9\n\n"),
    "2018": (".tsv", "2\t0.5\t-1.25\t3\n-1\t1e-3\t2\t4\n2\t7\t8\t9"),
    "ts": (
        ".ts",
        "# a comment\n@problemName Made\n@timeStamps false\n@univariate true\n@classLabel true -1 2\n@data\n"
        "0.5,-1.25,3:2\n0.001,2,4:-1\n7,8,9: 2\n",
    ),
}


@pytest.mark.parametrize("place", ["Made", "."], ids=["own folder", "in ucr"])
@pytest.mark.parametrize("text", TEXT.values(), ids=TEXT.keys())
def test_formats(tmp_path, text, place):
    ending, content = text
    folder = tmp_path / "ucr" / place
    folder.mkdir(parents=True)
    (folder / f"Made_TRAIN{ending}").write_text(content)
    series = read_ucr(tmp_path, "Made")
    np.testing.assert_array_equal(series.x_train, X)
    assert (series.y_train.tolist(), series.labels, series.x_test) == ([1, 0, 1], (-1, 2), None)
    (folder / f"Made_TEST{ending}").write_text(content.replace("-1", "5"))
    series = read_ucr(tmp_path, "Made")
    assert (series.y_train.tolist(), series.y_test.tolist(), series.labels) == ([1, 0, 1], [1, 2, 1], (-1, 2, 5))
    assert names(tmp_path) == ["Made"]


def write(folder, ending, content, part="TRAIN"):
    (folder / "ucr").mkdir(exist_ok=True)
    path = folder / "ucr" / f"Made_{part}{ending}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_labels_in_words(tmp_path):
    write(tmp_path, ".ts", "@classLabel true b a 10\n@data\n1,2:b\n3,4:a\n5,6:10\n5,6:9\n")
    series = read_ucr(tmp_path, "Made")
    assert series.labels == ("10", "9", "a", "b")
    assert series.y_train.tolist() == [3, 2, 0, 1]


@pytest.mark.parametrize(
    ("ending", "content", "wrong"),
    [
        pytest.param(".tsv", "1\t2\t3\n1\t2\n", "line 2 has 2 values, the first row has 3", id="unequal lengths"),
        pytest.param(".tsv", "1\t2\n1\tNaN\n", "line 2 holds 'NaN', and only finite float32 numbers will do", id="NaN"),
        pytest.param(".txt", "1\n2\n", "line 1 has a label and no series", id="no series"),
        pytest.param(".txt", "1 2\n1.5 2\n", "line 2 has label 1.5, and labels are whole numbers", id="label 1.5"),
        pytest.param(
            ".txt", "\n1 2\n1e30 2\n", "line 3 has label 1e+30, and labels are whole numbers", id="large label"
        ),
        pytest.param("", "1,2\na,2\n", "line 2 holds 'a', which is not a number", id="label in words"),
        pytest.param("", b"1,2\n\xff,2\n", "line 2 is not UTF-8 text (byte 0xff)", id="not text"),
        pytest.param(".ts", "@data\n1,2:a\n1,?:b\n", "line 3 has a missing value", id="missing value"),
        pytest.param(".ts", "@data\n1,2:a\n1,2,3:b\n", "line 3 has 3 values, the first row has 2", id="ts lengths"),
        pytest.param(".ts", "@data\n1,2:3,4:a\n", "line 2 has 2 dimensions and a label, expected 1", id="multivariate"),
        pytest.param(".ts", "@data\n1,2\n", "line 2 has 0 dimensions and a label, expected 1", id="no colon"),
        pytest.param(".ts", "@data\n1,2:\n", "line 2 has no label", id="no label"),
        pytest.param(".ts", "@data\n\n# 1,2:a\n", "there are no rows in it", id="no rows"),
        pytest.param(".ts", "@univariate true\n", "it has no line @data", id="no data"),
        pytest.param(".ts", "1,2:a\n", "line 1 comes before @data and does not start with @", id="no header"),
        pytest.param(
            ".ts", "@classLabel false\n@data\n1,2\n", "line 1 says that its series have no classes", id="no classes"
        ),
        pytest.param(".ts", "@data\n(0,1),(1,2):a\n", "line 2 holds '(0', which is not a number", id="time stamps"),
    ],
)
def test_bad_files(tmp_path, ending, content, wrong):
    path = write(tmp_path, ending, content)
    assert refusal(read_ucr, tmp_path, "Made") == f"cannot read {str(path)!r}: {wrong}"


def test_parts_of_unequal_length(tmp_path):
    write(tmp_path, ".tsv", "1\t2\t3\n")
    path = write(tmp_path, ".tsv", "1\t2\n", "TEST")
    said = f"cannot read {str(path)!r}: its series have 1 steps, those to train on 2"
    assert refusal(read_ucr, tmp_path, "Made") == said


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        pytest.param({"x_train": None}, "it has no array 'x_train', found", id="no series"),
        pytest.param({"y_test": None}, "it has no array 'y_test'", id="half a test part"),
        pytest.param({"x_train": np.zeros((2, 0))}, "'x_train' and 'y_train' are not (N, T) real", id="no steps"),
        pytest.param({"y_train": np.zeros(2)}, "'x_train' and 'y_train' are not (N, T) real", id="labels not whole"),
        pytest.param({"y_train": np.zeros(3, int)}, "'x_train' and 'y_train' are not (N, T) real", id="three labels"),
        pytest.param(
            {"x_test": np.array([[1.0, 2.0], [1e39, 1.0]])},
            "row 1 of 'x_test' holds something else than finite numbers",
            id="too large",
        ),
        pytest.param({"x_test": np.zeros((2, 3))}, "its series have 3 steps, those to train on 2", id="other length"),
    ],
)
def test_bad_arrays(tmp_path, change, wrong):
    (tmp_path / "ucr").mkdir()
    good = {
        name: np.zeros((2, 2)) if name[0] == "x" else np.arange(2)
        for name in ("x_train", "y_train", "x_test", "y_test")
    }
    path = tmp_path / "ucr" / "Made.npz"
    np.savez(path, **good)
    assert read_ucr(tmp_path, "Made").labels == (0, 1)
    np.savez(path, **{name: array for name, array in (good | change).items() if array is not None})
    said = refusal(read_ucr, tmp_path, "Made")
    assert said.startswith(f"cannot read {str(path)!r}: ")
    assert wrong in said


def test_unknown_sets(tmp_path):
    assert refusal(read_ucr, tmp_path, "Made") == f"there are no UCR sets in {str(tmp_path / 'ucr')!r}"
    write(tmp_path, ".tsv", "1\t2\t3\n")
    assert refusal(read_ucr, tmp_path, "Mode").startswith("unknown UCR set 'Mode', ")
    assert refusal(read_ucr, tmp_path, "../ucr/Made").startswith("unknown UCR set '../ucr/Made'")


@pytest.mark.parametrize("text", TEXT.values(), ids=TEXT.keys())
def test_damaged_text_gives_series_or_one_sentence(tmp_path, text):
    ending, content = text

    @same_folder
    @given(st.one_of(damaged(content.encode()), st.binary(min_size=1, max_size=60)))
    @example(b"@data\n1:" + b"9" * 5000 + b"\n")
    def check(broken):
        path = write(tmp_path, ending, broken)
        series = answer_or_sentence(lambda: read_ucr(tmp_path, "Made"), path)
        if series is not None:
            assert series.x_train.ndim == 2
            assert np.isfinite(series.x_train).all()
            assert set(series.y_train.tolist()) == set(range(len(series.labels)))

    check()
