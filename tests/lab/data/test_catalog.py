"""What is written down about the data sets, held against the sets themselves where they are at hand."""

from __future__ import annotations

import re

import pytest

from evenflow.lab.data import CATALOG
from evenflow.lab.data.fetch import state

FILES = [(name, file) for name, source in CATALOG.items() for file in source.files]
UCR_SETS = 21


def test_every_source_says_what_a_user_must_know():
    for name, source in CATALOG.items():
        assert source.name == name
        assert source.title
        assert source.terms
        assert re.search(r"\d{4}", source.origin), "a citation has a year"
        assert source.fetchable or source.note, "where a file cannot be fetched a note says what to look for"


def test_what_can_be_fetched_can_be_checked():
    for _, file in FILES:
        for choice in file.choices:
            assert choice.sha256 is None or re.fullmatch("[0-9a-f]{64}", choice.sha256)
        if file.url:
            assert file.url.startswith("https://")
            assert file.url.rpartition("/")[2] == file.path.rpartition("/")[2]
            assert file.sha256
            assert file.size


def test_paths_stay_in_the_data_folder_and_differ():
    paths = [choice.path for _, file in FILES for choice in file.choices]
    paths += [file.path for source in CATALOG.values() for layout in source.layouts for file in layout]
    assert len(paths) == len(set(paths))
    assert not [path for path in paths if path.startswith("/") or ".." in path or "\\" in path]


def test_all_sets_of_the_issue_are_there():
    assert sum(name.startswith("ucr/") for name in CATALOG) == UCR_SETS
    assert {"mnist", "ptb", "musedata", "jsb", "nottingham", "piano-midi", "har", "har-rebuilt"} < set(CATALOG)
    assert {"har-subset", "bibtex", "mediamill"} < set(CATALOG)


@pytest.mark.parametrize("name", CATALOG)
def test_the_real_files_have_these_sizes_and_checksums(name, data):
    found = state(CATALOG[name], data, verify=True)
    if found.word == "missing":
        pytest.skip(f"{name} is not at hand: {found.reason}")
    assert (found.word, found.reason) == ("present", "")


def test_a_missing_file_is_named_with_what_to_do(tmp_path):
    with pytest.raises(ValueError) as error:
        CATALOG["ptb"].locate(tmp_path, "ptb/ptb.train.txt")
    assert str(error.value) == (
        f"ptb/ptb.train.txt is not in the data folder {str(tmp_path)!r}: "
        f"`evenflow data get ptb --data {tmp_path}` fetches it"
    )
    with pytest.raises(ValueError) as error:
        CATALOG["bibtex"].locate(tmp_path, "multilabel/bibtex.npz")
    assert "put it there by hand (the arff files of Mulan, as npz of packed bits, or" in str(error.value)


def test_an_alternative_is_found(tmp_path):
    packed = tmp_path / "ptb" / "ptb.train.txt.gz"
    packed.parent.mkdir()
    packed.write_bytes(b"x")
    assert CATALOG["ptb"].locate(tmp_path, "ptb/ptb.train.txt") == packed
    (plain := tmp_path / "ptb" / "ptb.train.txt").write_bytes(b"x")
    assert CATALOG["ptb"].locate(tmp_path, "ptb/ptb.train.txt") == plain
