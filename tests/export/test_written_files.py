"""Files of an export are written together, or not at all."""

from __future__ import annotations

import pytest

import evenflow
from evenflow.export.written_files import write_files


def test_files_replace_those_before(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    write_files({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}


def test_nothing_is_written_if_one_file_cannot_be(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match="/b' cannot be written: it is a folder"):
        write_files({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert (tmp_path / "a").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("ending", [".c", ".onnx"])
def test_a_missing_folder_is_named(ending, tmp_path):
    if ending == ".onnx":
        pytest.importorskip("onnx", reason="onnx is not installed")
    write = evenflow.export.to_c if ending == ".c" else evenflow.export.to_onnx
    with pytest.raises(ValueError, match=f"missing/model{ending}' cannot be written: No such file or directory"):
        write(evenflow.RNN(2, 3), tmp_path / "missing" / f"model{ending}")
    assert not list(tmp_path.iterdir())
