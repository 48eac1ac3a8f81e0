"""Files of an export are written together, or not at all."""

from __future__ import annotations

import pytest

import evenflow
from evenflow.export.written_files import write_files


def test_files_replace_those_before(tmp_path):
    (tmp_path / "a").write_bytes(b"Written by evenflow 1.0")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "b").touch()
    write_files({tmp_path / "link": b"1", tmp_path / "b": b"2"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "link": b"1", "b": b"2"}
    assert (tmp_path / "link").is_symlink()


def test_files_of_others_are_not_replaced(tmp_path):
    (tmp_path / "model.h").write_text("#define MINE\n")
    sentence = r"^path '.*model.h' exists and was not exported by evenflow: choose another name$"
    for _ in range(2):
        with pytest.raises(ValueError, match=sentence):
            evenflow.export.to_c(evenflow.RNN(2, 3), tmp_path / "model.c")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"model.h": "#define MINE\n"}


@pytest.mark.parametrize("ending", [".c", ".onnx"])
def test_an_earlier_export_is_replaced(ending, tmp_path):
    if ending == ".onnx":
        pytest.importorskip("onnx", reason="onnx is not installed")
    write = evenflow.export.to_c if ending == ".c" else evenflow.export.to_onnx
    for units in (2, 30):
        write(evenflow.RNN(2, units), path := tmp_path / f"model{ending}")
    write(evenflow.RNN(2, 2), path)


def test_nothing_is_written_if_one_file_cannot_be(tmp_path):
    (tmp_path / "a").write_bytes(b"evenflow, old")
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match="/b' cannot be written: it is a folder"):
        write_files({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert (tmp_path / "a").read_bytes() == b"evenflow, old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("ending", [".c", ".onnx"])
def test_a_missing_folder_is_named(ending, tmp_path):
    if ending == ".onnx":
        pytest.importorskip("onnx", reason="onnx is not installed")
    write = evenflow.export.to_c if ending == ".c" else evenflow.export.to_onnx
    with pytest.raises(ValueError, match=f"missing/model{ending}' cannot be written: No such file or directory"):
        write(evenflow.RNN(2, 3), tmp_path / "missing" / f"model{ending}")
    assert not list(tmp_path.iterdir())
