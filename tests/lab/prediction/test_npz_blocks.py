"""Npz files in blocks of any size: the same sequences, targets, errors and sentences as from the whole file."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_files import predictor_of

from evenflow.lab.data import npz_blocks
from evenflow.lab.data.file_blocks import file_blocks
from evenflow.lab.prediction import evaluate_file, predict_file

LABELS = np.array(["rest", "run", "walk"])
ROUNDING = 1e-5


@pytest.fixture
def x():
    draw = np.random.RandomState(0)
    return np.stack([100 + 20 * draw.randn(23, 6), -3 + 0.5 * draw.randn(23, 6)], -1).astype(np.float32)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("readout", ["last", "every"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_blocks_are_the_whole_file(kind, readout, save, x, tmp_path, monkeypatch):
    made = predictor_of(kind, readout)
    lengths = 1 + np.arange(23) % 6
    shape = (23, 6) if readout == "every" else (23,)
    y = np.random.RandomState(1).randint(0, 3, shape)
    y = LABELS[y] if kind == "classification" else 1000.0 + y
    save(tmp_path / "a.npz", x=x, y=y, lengths=lengths)
    blocks, answers = {}, {}
    for size in (1 << 26, 500):
        monkeypatch.setattr(npz_blocks, "BLOCK_BYTES", size)
        seen: list[tuple[int, int]] = []
        blocks[size] = list(
            file_blocks(tmp_path / "a.npz", made.schema, True, progress=lambda *at, to=seen: to.append(at))
        )
        predict_file(made, tmp_path / "a.npz", tmp_path / f"{size}.csv")
        answers[size] = [row.split(",") for row in (tmp_path / f"{size}.csv").read_text().splitlines()]
        result = evaluate_file(made, tmp_path / "a.npz")
        assert result.sequences == 23
        assert seen[-1] == ((tmp_path / "a.npz").stat().st_size,) * 2
    (whole,), many = blocks.values()
    assert len(many) > 3
    assert [name for block in many for name in block.names] == whole.names == [str(n) for n in range(23)]
    for part in ("inputs", "targets"):
        for found, expected in zip(
            [each for block in many for each in getattr(block, part)], getattr(whole, part), strict=True
        ):
            assert np.array_equal(found, expected)
    assert [len(each) for each in whole.inputs] == lengths.tolist()
    first, second = answers.values()
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one[0] == other[0]
    if kind == "regression":
        values = [np.array([row[-1] for row in rows[1:]], float) for rows in (first, second)]
        np.testing.assert_allclose(*values, rtol=ROUNDING)


def test_an_array_stored_by_columns(x, tmp_path, monkeypatch):
    monkeypatch.setattr(npz_blocks, "BLOCK_BYTES", 500)
    made = predictor_of("regression", "last")
    np.savez(tmp_path / "a.npz", x=np.asfortranarray(x))
    found = [each for block in file_blocks(tmp_path / "a.npz", made.schema, False) for each in block.inputs]
    assert np.array_equal(np.stack(found), x)


def test_sequences_of_one_step(x, tmp_path):
    made = predictor_of("classification", "last")
    np.savez(tmp_path / "a.npz", x=x[:, :1])
    assert predict_file(made, tmp_path / "a.npz", tmp_path / "out.csv") == 23


def corrupt(path):
    """Change a byte near the end of the numbers of x, so that only the checksum notices."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("x.npy")
    data[info.header_offset + info.file_size - 4] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a | {"y": a["y"][:9]}, "'y' has 9 rows, and 'x' has 23"),
        (lambda a: a | {"x": a["x"][:, :, :1]}, "'x' has 1 inputs, and the model reads 2"),
        (lambda a: a | {"x": np.where(np.arange(23)[:, None, None] == 20, np.nan, a["x"])}, "row 20, step 0, of 'x'"),
        (lambda a: a | {"y": np.where(np.arange(23) == 21, "fly", a["y"])}, "row 21 of 'y' holds 'fly'"),
        (
            lambda a: a | {"lengths": np.where(np.arange(23) == 22, 7, 6)},
            "row 22 of 'lengths' is 7, allowed are 1 to 6",
        ),
        (lambda a: a | {"x": np.float32(3)}, "array 'x' is a single number"),
        (lambda a: a | {"x": a["x"][:0], "y": a["y"][:0]}, "'x' must be numbers"),
        (lambda a: {"y": a["y"]}, "it has no array 'x'"),
        (lambda a: {"x": a["x"]}, "it has no array 'y'"),
        (None, "its member 'x.npy' is damaged"),
    ],
)
def test_a_wrong_row_is_named_in_any_block(change, message, x, tmp_path, monkeypatch):
    monkeypatch.setattr(npz_blocks, "BLOCK_BYTES", 500)
    made, path = predictor_of("classification", "last"), tmp_path / "a.npz"
    arrays = {"x": x, "y": LABELS[np.arange(23) % 3]}
    np.savez(path, **(change(arrays) if change else arrays))
    if change is None:
        corrupt(path)
    with pytest.raises(ValueError, match=message):
        evaluate_file(made, path)
    if "'y'" not in message and "fly" not in message:
        with pytest.raises(ValueError, match=message):
            predict_file(made, path, tmp_path / "out.csv")
        assert not (tmp_path / "out.csv").exists()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damaged_files_give_a_sentence(data, tmp_path):
    made, path = predictor_of("regression", "last"), tmp_path / "a.npz"
    np.savez_compressed(path, x=np.ones((40, 3, 2), np.float32), y=np.ones(40))
    good = bytearray(path.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=4)):
        good[place] = data.draw(st.integers(0, 255))
    path.write_bytes(good[: data.draw(st.integers(1, len(good)))])
    said = None
    try:
        evaluate_file(made, path)
    except ValueError as error:
        said = str(error)
    assert said is None or (said.startswith(f"cannot read {str(path)!r}: ") and "\n" not in said)
