from __future__ import annotations

import shutil

import numpy as np
import pytest
from damage import refusal

from evenflow.lab.data.har_files import ACTIVITIES, SIGNALS, read_har

# The subset was rounded to five digits and then to four: half a unit of the fourth digit and half of the fifth.
ROUNDED_TWICE = 0.55
# The recordings' own text has seven decimals.
PRINTED = 1e-6


@pytest.fixture(scope="module")
def rebuilt(data):
    return read_har(data, "rebuilt")


def test_the_rebuilt_set_is_the_published_one_to_its_digits(data, rebuilt):
    subset = read_har(data, "subset")
    assert rebuilt.note == "rebuilt from raw recordings"
    assert rebuilt.x_train.shape == (7352, 128, 9)
    assert rebuilt.x_test.shape == (2947, 128, 9)
    assert subset.x_train.shape == (2400, 128, 9)
    assert subset.x_test.shape == (950, 128, 9)
    index = np.load(data / "har" / "uci_har_index.npz")
    for part in ("train", "test"):
        known = index[f"level_{part}"] == 2
        x, y = getattr(rebuilt, f"x_{part}"), getattr(rebuilt, f"y_{part}")
        real = getattr(subset, f"x_{part}").astype(np.float64)
        np.testing.assert_array_equal(y[known], getattr(subset, f"y_{part}"))
        unit = 10.0 ** (np.floor(np.log10(np.maximum(np.abs(real), 1e-9) * (1 + 1e-6))) - 3)
        assert (np.abs(x[known] - real) <= ROUNDED_TWICE * unit + PRINTED).all()


def test_activities_of_the_whole_set(rebuilt):
    """Counts as published: 1,226 walking, 1,073 up, 986 down, 1,286 sitting, 1,374 standing, 1,407 laying."""
    assert np.bincount(rebuilt.y_train).tolist() == [1226, 1073, 986, 1286, 1374, 1407]
    assert np.bincount(rebuilt.y_test).tolist() == [496, 471, 420, 491, 532, 537]
    for x, y in ((rebuilt.x_train, rebuilt.y_train), (rebuilt.x_test, rebuilt.y_test)):
        assert (x.dtype, y.dtype) == (np.float32, np.int64)
        assert np.isfinite(x).all()
        # Gravity lies along x while upright and not while laying: the signals are in their order.
        gravity = np.abs(x[:, :, SIGNALS.index("total_acc_x")].mean(1))
        assert gravity[y == ACTIVITIES.index("standing")].mean() > 0.9
        assert gravity[y == ACTIVITIES.index("laying")].mean() < 0.4


@pytest.fixture
def published(tmp_path):
    """A small folder as the archive unpacks to, and what is in it."""
    draw = np.random.default_rng(0)
    expected = {}
    for part, rows in (("train", 5), ("test", 3)):
        place = tmp_path / "UCI HAR Dataset" / part
        (place / "Inertial Signals").mkdir(parents=True)
        x, y = draw.normal(size=(rows, 128, 9)), draw.integers(1, 7, rows)
        for column, signal in enumerate(SIGNALS):
            lines = ["".join(f" {value: .7e}" for value in row) for row in x[:, :, column]]
            (place / "Inertial Signals" / f"{signal}_{part}.txt").write_text("\n".join(lines) + "\n")
        (place / f"y_{part}.txt").write_text("".join(f"{label}\n" for label in y))
        expected[part] = (x, y)
    return tmp_path, expected


@pytest.mark.parametrize("place", [".", "har", "UCI HAR Dataset"], ids=["data folder", "its har", "the folder itself"])
def test_the_published_folder(published, place):
    folder, expected = published
    if place == "har":
        (folder / "har").mkdir()
        shutil.move(folder / "UCI HAR Dataset", folder / "har")
    elif place != ".":
        folder = folder / place
    windows = read_har(folder, "original")
    assert windows.note == ""
    for part, (x, y) in expected.items():
        np.testing.assert_allclose(getattr(windows, f"x_{part}"), x, rtol=1e-6)
        np.testing.assert_array_equal(getattr(windows, f"y_{part}"), y - 1)
        assert getattr(windows, f"x_{part}").dtype == np.float32


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        pytest.param("y_train.txt", "1\n2\n7\n1\n1\n", "labels must be whole numbers from 1 to 6", id="label 7"),
        pytest.param("y_train.txt", "1\n2.5\n", "labels must be whole numbers from 1 to 6", id="label 2.5"),
        pytest.param("y_train.txt", "1 2\n", "its rows have 2 values, expected 1", id="two labels"),
        pytest.param("y_train.txt", "1\n", "it has 5 rows of 128 values, expected 1 rows of 128", id="too few labels"),
        pytest.param(
            "Inertial Signals/body_gyro_z_train.txt",
            "1 2 3\n",
            "it has 1 rows of 3 values, expected 5 rows of 128",
            id="short rows",
        ),
        pytest.param(
            "Inertial Signals/body_gyro_z_train.txt",
            "1 2\n1 ha\n",
            "line 2 holds 'ha', which is not a number",
            id="text",
        ),
        pytest.param("Inertial Signals/body_gyro_z_train.txt", None, "there is no such file", id="missing"),
    ],
)
def test_a_damaged_folder(published, file, text, wrong):
    folder, _ = published
    path = folder / "UCI HAR Dataset" / "train" / file
    path.unlink()
    if text is not None:
        path.write_text(text)
    said = refusal(read_har, folder, "original")
    assert said.endswith(f": {wrong}")
    assert "UCI HAR Dataset" in said


@pytest.mark.parametrize("version", ["original", "rebuilt", "subset"])
def test_nothing_there(tmp_path, version):
    said = refusal(read_har, tmp_path, version)
    assert said.startswith(f"cannot read '{tmp_path / 'har'}")
    assert said.endswith(": there is no such file")


def test_versions(tmp_path):
    said = refusal(read_har, tmp_path, "full")
    assert said == "version must be one of original, rebuilt, subset, got 'full'"


def recordings(folder, raw=None, index=None):
    """Two small recordings and the windows in them."""
    (folder / "har").mkdir()
    draw = np.random.default_rng(0)
    acc, gyro = draw.integers(-900, 900, (2, 3, 500)).astype(np.int16)
    whole = {"acc": acc, "gyro": gyro, "acc_scale": np.array(1 / 720), "gyro_scale": np.array(0.001)}
    np.savez(
        folder / "har" / "hapt_raw.npz",
        **(whole | {"length": np.array([200, 300]), "exp": np.array([4, 9])} | (raw or {})),
    )
    windows = {"exp_train": np.array([9, 4]), "start_train": np.array([172, 0]), "y_train": np.array([1, 6])}
    tested = {"exp_test": np.array([9]), "start_test": np.array([64]), "y_test": np.array([2])}
    np.savez(folder / "har" / "uci_har_index.npz", **(windows | tested | (index or {})))
    return folder


def test_windows_are_cut_where_the_index_says(tmp_path):
    windows = read_har(recordings(tmp_path), "rebuilt")
    assert windows.x_train.shape == (2, 128, 9)
    np.testing.assert_array_equal(windows.x_train[0, :20], windows.x_test[0, 108:])
    assert windows.y_train.tolist() == [0, 5]


@pytest.mark.parametrize(
    ("raw", "index", "wrong"),
    [
        pytest.param(
            {}, {"start_train": np.array([173, 0])}, "row 0 of 'start_train' lies outside recording 9", id="end"
        ),
        pytest.param(
            {}, {"start_train": np.array([0, -1])}, "row 1 of 'start_train' lies outside recording 4", id="start"
        ),
        pytest.param({}, {"exp_test": np.array([5])}, "row 0 of 'start_test' lies outside recording 5", id="unknown"),
        pytest.param(
            {},
            {"start_test": np.array([0.5])},
            "'exp_test' and 'start_test' must hold 1 whole numbers each",
            id="half a sample",
        ),
        pytest.param({}, {"y_test": np.array([0])}, "labels must be whole numbers from 1 to 6", id="label 0"),
        pytest.param({"length": np.array([200, 301])}, {}, "its arrays are not recordings", id="lengths"),
        pytest.param({"length": np.array([501, -1])}, {}, "its arrays are not recordings", id="negative length"),
        pytest.param({"length": np.zeros(0, int), "exp": np.zeros(0, int)}, {}, "not recordings", id="no recordings"),
        pytest.param({"acc": np.zeros((3, 500))}, {}, "its arrays are not recordings", id="no counts"),
        pytest.param({"acc_scale": np.array(np.nan)}, {}, "its arrays are not recordings", id="no scale"),
        pytest.param({"acc_scale": np.array("1")}, {}, "its arrays are not recordings", id="scale in words"),
    ],
)
def test_recordings_that_do_not_fit(tmp_path, raw, index, wrong):
    assert wrong in refusal(read_har, recordings(tmp_path, raw, index), "rebuilt")


@pytest.mark.parametrize(
    "change",
    [{"x_train": np.zeros((2, 128, 8))}, {"x_train": np.full((2, 128, 9), np.nan)}, {"x_train": np.array(["a", "b"])}],
    ids=["eight signals", "not finite", "text"],
)
def test_a_damaged_subset(tmp_path, change):
    (tmp_path / "har").mkdir()
    good = {"x_train": np.zeros((2, 128, 9)), "y_train": np.array([1, 2])}
    tested = {"x_test": np.zeros((1, 128, 9)), "y_test": np.array([3])}
    np.savez(tmp_path / "har" / "uci_har_subset.npz", **good, **tested)
    assert read_har(tmp_path, "subset").y_test.tolist() == [2]
    np.savez(tmp_path / "har" / "uci_har_subset.npz", **(good | tested | change))
    said = refusal(read_har, tmp_path, "subset")
    assert said.endswith("'x_train' is not 2 windows of 128 by 9 finite numbers")
