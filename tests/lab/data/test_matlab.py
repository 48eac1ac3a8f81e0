from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from damage import answer_or_sentence, damaged, refusal, same_folder
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.data import matlab
from evenflow.lab.data.matlab import read_cells

scipy_io = pytest.importorskip("scipy.io")


def cell(*matrices):
    entries = np.empty((1, len(matrices)), dtype=object)
    entries[0] = [None] * len(matrices)
    for place, matrix in enumerate(matrices):
        entries[0, place] = matrix
    return entries


def mat(packed=True, **variables) -> bytes:
    """A file as scipy writes it."""
    file = io.BytesIO()
    scipy_io.savemat(file, variables, do_compression=packed)
    return file.getvalue()


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(kind: int, shape: tuple[int, ...], *parts: bytes, name: bytes = b"") -> bytes:
    """A matrix of a class, a shape and whatever parts."""
    head = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, head + element(1, name) + b"".join(parts))


HEAD = bytes(124) + b"\0\1IM"
ROLL = np.arange(6, dtype=np.uint8).reshape(2, 3)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "u4", "f4", "f8", "i8", "u8"])
def test_agrees_with_scipy(tmp_path, packed, dtype):
    path = tmp_path / "a.mat"
    path.write_bytes(mat(packed, a=cell(ROLL.astype(dtype), ROLL[:1].astype(dtype)), text="words", b=cell(ROLL), n=3.5))
    cells, expected = read_cells(path), scipy_io.loadmat(path)
    assert list(cells) == ["a", "b"]
    for name, matrices in cells.items():
        for ours, theirs in zip(matrices, expected[name][0], strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["JSB_Chorales", "MuseData", "Nottingham", "Piano_midi"])
def test_agrees_with_scipy_on_real_files(data, name):
    path = data / "music" / f"{name}.mat"
    cells, expected = read_cells(path), scipy_io.loadmat(path)
    for part in ("traindata", "validdata", "testdata"):
        for ours, theirs in zip(cells[part], expected[part][0], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_big_endian(tmp_path):
    path = tmp_path / "a.mat"
    numbers = struct.pack(">II6d", 9, 48, *range(6))
    entry = struct.pack(">IIII", 6, 8, 6, 0) + struct.pack(">IIii", 5, 8, 3, 2) + struct.pack(">II", 1, 0) + numbers
    entry = struct.pack(">II", 14, len(entry)) + entry
    whole = (
        struct.pack(">IIII", 6, 8, 1, 0)
        + struct.pack(">IIii", 5, 8, 1, 1)
        + struct.pack(">I", 0x10001)
        + b"a\0\0\0"
        + entry
    )
    path.write_bytes(bytes(124) + b"\1\0MI" + struct.pack(">II", 14, len(whole)) + whole)
    np.testing.assert_array_equal(read_cells(path)["a"][0], np.arange(6).reshape(2, 3).T)


GOOD_ENTRY = matrix(6, (1, 1), element(9, bytes(8)))


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        pytest.param(b"no header", "it is not a MATLAB 5 file", id="short"),
        pytest.param(bytes(124) + b"\0\2IM", "it is not a MATLAB 5 file", id="version 7.3"),
        pytest.param(HEAD + b"1234", "it ends early", id="half a tag"),
        pytest.param(HEAD + struct.pack("<II", 14, 1000), "it ends early", id="no content"),
        pytest.param(
            HEAD + struct.pack("<II", 14 | 9 << 16, 0), "a short element says it has 9 bytes", id="short element"
        ),
        pytest.param(HEAD + element(15, b"nothing")[:15], "a packed variable is damaged", id="not packed"),
        pytest.param(
            HEAD + struct.pack("<II", 15, 15) + zlib.compress(bytes(1000))[:15],
            "a packed variable ends early",
            id="cut",
        ),
        pytest.param(
            HEAD + struct.pack("<II", 15, len(zlib.compress(b""))) + zlib.compress(b""),
            "a packed variable is damaged",
            id="packed nothing",
        ),
        pytest.param(HEAD + element(14, b""), "a matrix ends early", id="empty matrix"),
        pytest.param(HEAD + element(14, element(1, b"") * 3), "a matrix has no header", id="no header"),
        pytest.param(HEAD + matrix(1, (-1, 2)), "a matrix says it has shape (-1, 2)", id="negative"),
        pytest.param(
            HEAD + matrix(1, (2**31 - 1, 2**31 - 1), GOOD_ENTRY, name=b"a"),
            f"cell 'a' says it has {(2**31 - 1) ** 2} entries and has 1",
            id="claims more entries than a memory holds",
        ),
        pytest.param(
            HEAD + matrix(1, (1, 1), matrix(6, (2**31 - 1, 2**31 - 1), element(9, bytes(8))), name=b"a"),
            "entry 0 of 'a' says it has shape (2147483647, 2147483647), which does not fit its size",
            id="claims more numbers than a memory holds",
        ),
        pytest.param(
            HEAD + matrix(1, (1, 1), matrix(1, (1, 1), GOOD_ENTRY), name=b"a"),
            "entry 0 of 'a' is not a matrix of real numbers",
            id="cell in a cell",
        ),
        pytest.param(
            HEAD + matrix(1, (1, 1), element(9, bytes(8))), "entry 0 of '' is not a matrix", id="bare numbers"
        ),
        pytest.param(
            HEAD + matrix(1, (1, 1), matrix(6 | 0x800, (1, 1), element(9, bytes(8)), element(9, bytes(8)))),
            "entry 0 of '' is not a matrix of real numbers",
            id="complex",
        ),
    ],
)
def test_bad_files(tmp_path, content, wrong):
    path = tmp_path / "a.mat"
    path.write_bytes(content)
    start = "" if wrong.startswith("it is not") else "it is a damaged MATLAB file: "
    assert refusal(read_cells, path) == f"cannot read {str(path)!r}: {start}{wrong}"


@pytest.mark.parametrize(
    ("inside", "wrong"),
    [
        pytest.param(
            matrix(6, (1, 1), element(2, bytes(3_000_000))), "it expands to more than 1,000,000 bytes", id="large"
        ),
        pytest.param(bytes(900_000), "it has more than 100,000 elements in a row", id="many"),
    ],
)
def test_bombs(tmp_path, monkeypatch, inside, wrong):
    monkeypatch.setattr(matlab, "LIMIT", 1_000_000)
    packed = zlib.compress(inside)
    path = tmp_path / "a.mat"
    path.write_bytes(HEAD + struct.pack("<II", 15, len(packed)) + packed)
    assert len(packed) < 5000
    assert refusal(read_cells, path).endswith(f": {wrong}")


@same_folder
@given(st.data(), st.booleans())
def test_a_damaged_file_gives_matrices_or_one_sentence(tmp_path, data, packed):
    path = tmp_path / "a.mat"
    path.write_bytes(data.draw(damaged(mat(packed, traindata=cell(ROLL, ROLL), validdata=cell(ROLL)))))
    for matrices in (answer_or_sentence(lambda: read_cells(path), path) or {}).values():
        assert all(matrix.ndim >= 2 for matrix in matrices)
