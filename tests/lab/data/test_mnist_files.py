"""idx files: the real ones, made ones, and bytes that only look like some."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.lab.data import mnist_files
from evenflow.lab.data.mnist_files import read_idx, read_mnist

COUNTS = {"train": 60_000, "test": 10_000}
MEAN_PIXEL = 0.1306605  # of the training images, of 1; commonly given as 0.1307
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


PIXELS = np.random.RandomState(0).randint(0, 256, (3, 28, 28)).astype(np.uint8)
DIGITS = np.array([7, 0, 9], np.uint8)


def place(folder: Path, images: bytes = idx(PIXELS), labels: bytes = idx(DIGITS), end: str = "") -> Path:
    (folder / "mnist").mkdir(exist_ok=True)
    (folder / "mnist" / (IMAGES + end)).write_bytes(images)
    (folder / "mnist" / (LABELS + end)).write_bytes(labels)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError) as error:
        read_mnist(folder)
    return str(error.value)


@pytest.mark.parametrize("part", COUNTS)
def test_the_real_set(part, data):
    images, labels = read_mnist(data, part)
    assert images.shape == (COUNTS[part], 28, 28)
    assert labels.shape == (COUNTS[part],)
    assert images.dtype == labels.dtype == np.uint8
    assert images.flags.writeable, "torch warns of arrays that may not be written to"
    assert np.unique(labels).tolist() == list(range(10))
    if part == "train":
        assert images.mean() / 255 == pytest.approx(MEAN_PIXEL, abs=1e-7)
        assert labels[:5].tolist() == [5, 0, 4, 1, 9]


@pytest.mark.parametrize("where", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
def test_made_files_come_back(where, packed, tmp_path):
    (tmp_path / where).mkdir(parents=True)
    for name, array in ((IMAGES, PIXELS), (LABELS, DIGITS)):
        content = gzip.compress(idx(array)) if packed else idx(array)
        (tmp_path / where / f"{name}{'.gz' if packed else ''}").write_bytes(content)
    images, labels = read_mnist(tmp_path)
    np.testing.assert_array_equal(images, PIXELS)
    np.testing.assert_array_equal(labels, DIGITS)


def test_the_folder_may_be_named_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("EVENFLOW_DATA", str(place(tmp_path)))
    assert len(read_mnist()[0]) == 3


def test_refusals(tmp_path):
    assert "`evenflow data get mnist" in refusal(tmp_path)
    with pytest.raises(ValueError) as error:
        read_mnist(tmp_path, "valid")
    assert str(error.value) == "part must be one of train, test, got 'valid'"
    images, labels = (str(tmp_path / "mnist" / name) for name in (IMAGES, LABELS))
    assert refusal(place(tmp_path, images=b"")) == f"cannot read {images!r}: it is empty"
    heading = f"cannot read {images!r}: it ends within its heading, as an idx file"
    assert refusal(place(tmp_path, images=idx(PIXELS)[:15])) == heading
    short = f"cannot read {images!r}: it has 2,367 bytes, and the sizes (3, 28, 28) in its heading need 2,368"
    assert refusal(place(tmp_path, images=idx(PIXELS)[:-1])) == short
    assert "it has 2,369 bytes" in refusal(place(tmp_path, images=idx(PIXELS) + b"\0"))
    assert (
        refusal(place(tmp_path, images=idx(DIGITS) + bytes(9))) == f"cannot read {images!r}: it has 1 dimensions, not 3"
    )
    assert "its images are 28 x 27, not 28 x 28" in refusal(place(tmp_path, images=idx(PIXELS[:, :, 1:])))
    assert "it is not an idx file of bytes" in refusal(place(tmp_path, images=b"\0\0\x0d\3" + idx(PIXELS)[4:]))
    assert "(0, 28, 28) in its heading leave it empty" in refusal(place(tmp_path, images=idx(PIXELS[:0])))
    assert refusal(place(tmp_path, labels=idx(DIGITS[:2]))) == f"cannot read {labels!r}: it has 2 labels for 3 images"
    wrong = np.array([1, 10, 2], np.uint8)
    assert refusal(place(tmp_path, labels=idx(wrong))) == f"cannot read {labels!r}: label 2 is 10, not a digit"


def test_packed_refusals(tmp_path, monkeypatch):
    packed = gzip.compress(idx(PIXELS))
    labels = gzip.compress(idx(DIGITS))
    assert "truncated gzip" in refusal(place(tmp_path, packed[:-20], labels, ".gz"))
    assert "not a gzip file" in refusal(place(tmp_path, idx(PIXELS), labels, ".gz"))
    damaged = packed[:-8] + bytes([packed[-8] ^ 1]) + packed[-7:]
    assert "damaged gzip" in refusal(place(tmp_path, damaged, labels, ".gz"))
    bomb = gzip.compress(bytes(mnist_files.LIMIT + 1), 9)
    assert len(bomb) < 100_000
    assert "expands to more than 67,108,864 bytes" in refusal(place(tmp_path, bomb, labels, ".gz"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    (place(tmp_path) / "mnist" / IMAGES).chmod(0)
    assert "there is no permission to read it" in refusal(tmp_path)


def test_sizes_whose_product_is_huge_are_refused(tmp_path):
    path = tmp_path / "huge"
    path.write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, 2**31, 2**31, 4) + bytes(16))  # 2^64, which is 0 in 64 bits
    with pytest.raises(ValueError, match="in its heading need 18,446,744,073,709,551,632"):
        read_idx(path, 3, 1 << 20)


mangled = st.one_of(
    st.binary(max_size=60),
    st.integers(0, len(idx(PIXELS))).map(lambda n: idx(PIXELS)[:n]),
    st.tuples(st.integers(0, 15), st.integers(0, 255)).map(
        lambda change: idx(PIXELS)[: change[0]] + bytes([change[1]]) + idx(PIXELS)[change[0] + 1 :]
    ),
)


def read_or_refuse(content: bytes, name: str, folder: Path) -> np.ndarray | None:
    """The array of a file with this content, or None where it was refused with one sentence that names it."""
    path = folder / name
    path.write_bytes(content)
    try:
        return read_idx(path, 3, 1 << 20)
    except ValueError as error:
        sentence = str(error)
    assert str(path) in sentence
    assert "\n" not in sentence
    return None


@given(content=mangled)
def test_any_bytes_are_an_array_or_refused(content, tmp_path_factory):
    found = read_or_refuse(content, "any", tmp_path_factory.getbasetemp())
    assert found is None or idx(found) == content


@given(content=mangled, cut=st.integers(0, 40), flip=st.none() | st.integers(0, 10_000))
def test_any_packed_bytes_are_an_array_or_refused(content, cut, flip, tmp_path_factory):
    packed = bytearray(gzip.compress(content))
    del packed[len(packed) - cut :]
    if flip is not None and packed:
        packed[flip % len(packed)] ^= 1 << flip % 8
    found = read_or_refuse(bytes(packed), "any.gz", tmp_path_factory.getbasetemp())
    if found is not None:
        assert zlib.crc32(idx(found)) == zlib.crc32(content), "a flip in the heading of the gzip file may do no harm"
