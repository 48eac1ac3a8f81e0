from __future__ import annotations

import gzip
import io
import os
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from damage import answer_or_sentence, damaged, refusal, same_folder
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.data.guarded import read_arrays, read_bytes, read_gzip, read_text

# Small enough that a bomb in a test costs nothing, large enough for the good files.
LIMIT = 100_000
# A file of this many zeros is 1,000 times smaller once packed.
BOMB = 50_000_000

COMPRESSIONS = {"stored": 0, "deflated": 8, "bz2": 12, "lzma": 14}
GOOD = {
    "x": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "y": np.array([1, 2], dtype=np.int16),
    "text": np.array(["a", "bc"]),
    "scalar": np.array(0.5),
}


class Creates:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple:
        return open, (self.path, "w")


def npz(path: Path, compression: int = zipfile.ZIP_DEFLATED, **arrays: np.ndarray | bytes) -> Path:
    """An npz file of arrays, or of raw members where bytes are given."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            if isinstance(array, bytes):
                buffer.write(array)
            else:
                np.save(buffer, array, allow_pickle=True)
            archive.writestr(f"{name}.npy", buffer.getvalue())
    return path


def header(descr: object, shape: tuple, version: int = 1) -> bytes:
    """The start of an npy file that claims this type and shape."""
    buffer = io.BytesIO()
    fields = {"descr": descr, "fortran_order": False, "shape": shape}
    (np.lib.format.write_array_header_1_0 if version == 1 else np.lib.format.write_array_header_2_0)(buffer, fields)
    return buffer.getvalue()


READERS = {
    "bytes": read_bytes,
    "gzip": read_gzip,
    "text": read_text,
    "arrays": lambda path, limit=LIMIT: read_arrays(path, ["x"], limit),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
class TestEveryReader:
    def test_missing(self, reader, tmp_path):
        path = tmp_path / "absent"
        assert refusal(reader, path) == f"cannot read {str(path)!r}: there is no such file"

    def test_missing_inside_a_file(self, reader, tmp_path):
        (tmp_path / "file").write_bytes(b"x")
        assert refusal(reader, tmp_path / "file" / "x").endswith(": there is no such file")

    def test_impossible_name(self, reader, tmp_path):
        assert refusal(reader, f"{tmp_path}/a\0b").endswith(": there is no such file")

    def test_name_too_long(self, reader, tmp_path):
        assert refusal(reader, tmp_path / ("a" * 5000)).endswith(": File name too long")

    def test_folder(self, reader, tmp_path):
        assert refusal(reader, tmp_path) == f"cannot read {str(tmp_path)!r}: it is a folder"

    def test_empty(self, reader, tmp_path):
        path = tmp_path / "empty"
        path.touch()
        assert refusal(reader, path) == f"cannot read {str(path)!r}: it is empty"

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
    def test_pipe_is_refused_without_waiting(self, reader, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        assert refusal(reader, tmp_path / "pipe").endswith(": it is not a regular file")

    def test_over_the_limit(self, reader, tmp_path):
        path = tmp_path / "large"
        path.write_bytes(bytes(1001))
        assert refusal(reader, path, limit=1000) == f"cannot read {str(path)!r}: it has 1,001 bytes, more than 1,000"

    def test_no_permission(self, reader, tmp_path, monkeypatch):
        path = tmp_path / "locked"
        path.write_bytes(b"x")
        path.chmod(0)
        if os.geteuid() == 0:  # who may read everything

            def locked(*_: object) -> None:
                raise PermissionError(13, "Permission denied")

            monkeypatch.setattr(Path, "open", locked)
        assert refusal(reader, path) == f"cannot read {str(path)!r}: there is no permission to read it"


def test_bytes_up_to_the_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", limit=5) == b"12345"


def test_gzip_of_several_members(tmp_path):
    path = tmp_path / "two.gz"
    path.write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    assert read_gzip(path) == b"one two"


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        pytest.param(b"plain text", "it is not a gzip file", id="not gzip"),
        pytest.param(gzip.compress(b"x" * 1000)[:-9], "it is a truncated gzip file", id="truncated"),
        pytest.param(gzip.compress(b"x" * 1000)[:5], "it is a truncated gzip file", id="truncated header"),
        pytest.param(gzip.compress(b"x")[:-8] + bytes(8), "it is a damaged gzip file", id="wrong checksum"),
        pytest.param(gzip.compress(b"x") + b"more", "it is a damaged gzip file", id="something behind it"),
        pytest.param(gzip.compress(b"x")[:10] + b"\xff" * 9, "it is a damaged gzip file", id="no deflate stream"),
        pytest.param(gzip.compress(b""), "there is nothing inside it", id="nothing inside"),
        pytest.param(gzip.compress(bytes(BOMB)), "it expands to more than 100,000 bytes", id="bomb"),
    ],
)
def test_bad_gzip(tmp_path, content, wrong):
    path = tmp_path / "file.gz"
    path.write_bytes(content)
    assert refusal(read_gzip, path, LIMIT) == f"cannot read {str(path)!r}: {wrong}"
    assert refusal(read_text, path, LIMIT) == f"cannot read {str(path)!r}: {wrong}"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
def test_text(tmp_path, mark):
    (tmp_path / "a.txt").write_bytes(mark + "für\n1".encode())
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(mark + "für\n1".encode()))
    assert read_text(tmp_path / "a.txt") == read_text(tmp_path / "a.txt.gz") == "für\n1"
    (tmp_path / "bad.txt").write_bytes(mark + b"one\ntwo\nthr\xe9e\n")
    assert refusal(read_text, tmp_path / "bad.txt").endswith(": line 3 is not UTF-8 text (byte 0xe9)")


@pytest.mark.parametrize("compression", COMPRESSIONS.values(), ids=COMPRESSIONS.keys())
def test_arrays_come_back(tmp_path, compression):
    path = npz(tmp_path / "a.npz", compression, other=np.zeros(3), **GOOD)
    arrays = read_arrays(path, ["x", "y"], optional=["text", "absent", "scalar"])
    assert list(arrays) == ["x", "y", "text", "scalar"]
    for name, array in arrays.items():
        assert array.dtype == GOOD[name].dtype
        np.testing.assert_array_equal(array, GOOD[name])
        assert array.flags.writeable


def test_other_orders_become_this_machine_s(tmp_path):
    """Fortran order, the other byte order, no rows, and a header of version 2."""
    table = np.arange(6, dtype=">f8").reshape(2, 3)
    path = npz(
        tmp_path / "a.npz",
        turned=np.asfortranarray(table),
        none=np.zeros((0, 4)),
        two=header("<i2", (2,), 2) + b"\1\0\2\0",
    )
    arrays = read_arrays(path, ["turned", "none", "two"])
    np.testing.assert_array_equal(arrays["turned"], table)
    assert arrays["turned"].dtype == np.dtype("=f8")
    assert arrays["turned"].flags.c_contiguous
    assert arrays["none"].shape == (0, 4)
    assert arrays["two"].tolist() == [1, 2]


def test_missing_name_and_what_there_is(tmp_path):
    path = npz(tmp_path / "a.npz", **GOOD)
    said = f"cannot read {str(path)!r}: it has no array 'z', found 'scalar', 'text', 'x', 'y'"
    assert refusal(read_arrays, path, ["x", "z"]) == said


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        pytest.param(b"plain text", "it is not an npz file", id="not a zip"),
        pytest.param(b"PK\3\4 and then something", "it is a damaged or truncated npz file", id="not quite a zip"),
        pytest.param(pickle.dumps([1]), "it is a pickle, which is never read, not an npz file", id="pickle"),
        pytest.param(
            header("<f4", (1,)) + bytes(4), "it is a single npy array, not an npz file of named arrays", id="npy"
        ),
    ],
)
def test_not_an_npz(tmp_path, content, wrong):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    assert refusal(read_arrays, path, ["x"]) == f"cannot read {str(path)!r}: {wrong}"


@pytest.mark.parametrize(
    ("member", "wrong"),
    [
        pytest.param(b"text", "its member 'x' is not an array", id="not an npy"),
        pytest.param(b"", "its member 'x' is not an array", id="empty"),
        pytest.param(b"\x93NUMPY\x03\0\0\0\0\0", "its member 'x' is not an array", id="version 3"),
        pytest.param(b"\x93NUMPY\x01\0\x05\0open(", "its member 'x' is not an array", id="header of code"),
        pytest.param(
            header("<f4", (10**12,)) + bytes(4),
            "array 'x' says it has shape (1000000000000,), which does not fit its size",
            id="claims a terabyte",
        ),
        pytest.param(
            header("<f4", (2,)) + bytes(4), "array 'x' says it has shape (2,), which does not fit its size", id="short"
        ),
        pytest.param(
            header("<f4", (-1, -1)) + bytes(4),
            "array 'x' says it has shape (-1, -1), which does not fit its size",
            id="negative",
        ),
        pytest.param(
            header("<f4", (0, 10**30)),
            f"array 'x' says it has shape (0, {10**30}), which is not possible",
            id="more than numpy can count",
        ),
        pytest.param(
            header("<M8[s]", (1,)) + bytes(8),
            "array 'x' has type datetime64[s], which is neither numbers nor text",
            id="dates",
        ),
        pytest.param(
            header("<U0", (1,)), "array 'x' has type <U0, which is neither numbers nor text", id="text of no length"
        ),
    ],
)
def test_bad_member(tmp_path, member, wrong):
    path = npz(tmp_path / "a.npz", x=member)
    assert refusal(read_arrays, path, ["x"]) == f"cannot read {str(path)!r}: {wrong}"


def test_encrypted_member(tmp_path):
    path = npz(tmp_path / "a.npz", zipfile.ZIP_STORED, x=GOOD["x"])
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.rindex(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    assert refusal(read_arrays, path, ["x"]).endswith(": its member 'x.npy' is damaged, truncated or encrypted")


@pytest.mark.parametrize("compression", COMPRESSIONS.values(), ids=COMPRESSIONS.keys())
def test_objects_are_never_unpickled(tmp_path, compression):
    made = tmp_path / "made"
    array = np.array([Creates(made)], dtype=object)
    path = npz(tmp_path / "a.npz", compression, x=array)
    assert (
        refusal(read_arrays, path, ["x"])
        == f"cannot read {str(path)!r}: array 'x' holds Python objects (a pickle), which are never read"
    )
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Creates(made)))
    assert "is a pickle, which is never read" in refusal(read_arrays, tmp_path / "b.npz", ["x"])
    path = npz(tmp_path / "c.npz", compression, x=pickle.dumps(Creates(made)))
    assert refusal(read_arrays, path, ["x"]).endswith(": its member 'x' is not an array")
    assert not made.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        pickle.loads(pickle.dumps(Creates(made)))
    assert made.exists(), "the payload itself must work, or this test shows nothing"


@pytest.mark.parametrize("compression", list(COMPRESSIONS.values())[1:], ids=list(COMPRESSIONS)[1:])
def test_zip_bombs(tmp_path, compression):
    """An honest one is refused by the size it declares, one that lies by where its declared size ends."""
    path = npz(tmp_path / "a.npz", compression, x=np.zeros(BOMB // 8))
    assert path.stat().st_size < BOMB / 500
    declared = BOMB + 128
    assert (
        refusal(read_arrays, path, ["x"], LIMIT)
        == f"cannot read {str(path)!r}: its arrays expand to {declared:,} bytes, more than 100,000"
    )
    data = path.read_bytes()
    assert data.count(declared.to_bytes(4, "little")) == 2
    path.write_bytes(data.replace(declared.to_bytes(4, "little"), (1000).to_bytes(4, "little")))
    assert refusal(read_arrays, path, ["x"], LIMIT).endswith(" is damaged, truncated or encrypted")


def test_the_limit_is_for_all_arrays_together(tmp_path):
    path = npz(tmp_path / "a.npz", x=np.zeros(100), y=np.zeros(100))
    assert list(read_arrays(path, ["x"], 1000)) == ["x"]
    assert "its arrays expand to 1,856 bytes, more than 1,000" in refusal(read_arrays, path, ["x", "y"], 1000)


@same_folder
@given(data=st.data(), compression=st.sampled_from(list(COMPRESSIONS.values())))
def test_a_damaged_npz_gives_its_arrays_or_one_sentence(tmp_path, data, compression):
    path = npz(tmp_path / "a.npz", compression, **GOOD)
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    arrays = answer_or_sentence(lambda: read_arrays(path, list(GOOD), LIMIT), path)
    for name, array in (arrays or {}).items():
        np.testing.assert_array_equal(array, GOOD[name])


@same_folder
@given(
    start=st.sampled_from([b"\x93NUMPY\x01\0v\0", b"\x93NUMPY\x02\0v\0\0\0", b""]),
    header=st.one_of(st.binary(max_size=200), st.text("{}'<f48:,()shapedscrot 0123456789OUV", max_size=118)),
)
def test_a_made_up_member_is_refused(tmp_path, start, header):
    text = header if isinstance(header, bytes) else header.ljust(117).encode() + b"\n"
    path = npz(tmp_path / "a.npz", x=start + text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's, about odd literals
        assert refusal(read_arrays, path, ["x"], LIMIT).startswith(f"cannot read {str(path)!r}: ")


@same_folder
@given(content=st.binary(min_size=1, max_size=100), packed=st.booleans())
def test_random_bytes(tmp_path, content, packed):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(content) if packed else b"\x1f\x8b" + content)
    if packed:
        assert read_gzip(path) == content
    else:
        assert refusal(read_gzip, path).startswith("cannot read")
    path.write_bytes(content)
    assert refusal(read_arrays, path, ["x"]).startswith("cannot read")
