"""Which folder is meant, and that the cache only ever saves time."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from evenflow.lab.data import cache_folder, data_folder
from evenflow.lab.data.cache import kept


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    for name in ("EVENFLOW_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_the_given_folder_comes_first(monkeypatch, tmp_path):
    monkeypatch.setenv("EVENFLOW_DATA", str(tmp_path / "named"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder(tmp_path / "given") == tmp_path / "given"
    assert data_folder("~/given") == tmp_path / "given"
    assert data_folder() == tmp_path / "named"
    monkeypatch.setenv("EVENFLOW_DATA", "")
    assert data_folder() == tmp_path / "cache" / "evenflow" / "data"


@pytest.mark.parametrize(
    ("platform", "place"),
    [("linux", ".cache/evenflow"), ("darwin", "Library/Caches/evenflow"), ("win32", "Local/evenflow")],
)
def test_the_cache_is_where_the_system_puts_caches(platform, place, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    assert data_folder() == tmp_path / place / "data"
    assert cache_folder() == tmp_path / place / "derived"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError) as error:
        data_folder(tmp_path / "file")
    assert str(error.value) == f"the data folder {str(tmp_path / 'file')!r} is a file, not a folder"


def test_an_empty_name_is_no_folder():
    with pytest.raises(ValueError) as error:
        data_folder("")
    assert str(error.value) == "the data folder must be a path, got ''"


def test_a_number_is_no_folder():
    with pytest.raises(ValueError, match=r"^the data folder must be a path, got 5$"):
        data_folder(5)


def test_a_home_that_is_not_known_is_said(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(ValueError) as error:
        data_folder()
    assert str(error.value) == "the home folder in '~/.cache/evenflow' is not known; set EVENFLOW_DATA to a folder"


class Maker:
    """Counts how often the array had to be made."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, np.ndarray]:
        self.calls += 1
        return {"a": np.arange(5, dtype=np.int32)}


def good(found: dict[str, np.ndarray]) -> bool:
    return found["a"].shape == (5,)


def recall(make: Maker) -> np.ndarray:
    return kept("five", ("a",), make, good)["a"]


def test_what_is_kept_is_not_made_again():
    make = Maker()
    first, second = recall(make), recall(make)
    assert make.calls == 1
    np.testing.assert_array_equal(first, second)
    assert second.dtype == np.int32
    assert [path.name for path in cache_folder().iterdir()] == ["five.npz"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "random", "empty", "not good", "folder"])
def test_what_is_damaged_is_made_again(damage):
    make = Maker()
    recall(make)
    path = cache_folder() / "five.npz"
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[content.index(np.arange(5, dtype=np.int32).tobytes())] ^= 1
        path.write_bytes(content)
    elif damage == "random":
        path.write_bytes(np.random.RandomState(0).bytes(300))
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "not good":
        np.savez(path, a=np.arange(4, dtype=np.int32))
    else:
        path.unlink()
        path.mkdir()
    np.testing.assert_array_equal(recall(make), np.arange(5))
    assert make.calls == 2


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made below a file
    make = Maker()
    np.testing.assert_array_equal(recall(make), np.arange(5))
    np.testing.assert_array_equal(recall(make), np.arange(5))
    assert make.calls == 2
    assert (tmp_path / "file").read_text() == "x"


def test_an_interrupted_write_leaves_nothing(monkeypatch):
    def refuse(*_: Path) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", refuse)
    np.testing.assert_array_equal(recall(Maker()), np.arange(5))
    assert list(cache_folder().iterdir()) == []
