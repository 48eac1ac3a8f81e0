"""Which folder holds the data sets."""

from __future__ import annotations

import os

import pytest

from evenflow.lab.data import data_folder


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
def test_by_default_it_is_where_the_system_puts_caches(platform, place, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    assert data_folder() == tmp_path / place / "data"


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
