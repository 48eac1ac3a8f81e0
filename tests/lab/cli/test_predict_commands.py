"""The commands `predict`, `evaluate` and `export`: what they write, and what they leave alone."""

from __future__ import annotations

import numpy as np
import pytest

import evenflow
from evenflow.lab import cli
from evenflow.models import DataColumn, DataSchema


def run(*arguments: object) -> int:
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as left:
        return int(left.code or 0)
    return 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a saved model of two inputs, and a file for it."""
    target = DataColumn("state", "category", categories=("off", "on"))
    schema = DataSchema("classification", "last", (DataColumn("ax"), DataColumn("ay")), (target,))
    evenflow.save(evenflow.SequenceModel(evenflow.create("gru", 2, 4), 2), tmp_path / "model", schema=schema)
    rows = "".join(f"s{n // 5},{x:.3f},{y:.3f}\n" for n, (x, y) in enumerate(np.random.RandomState(0).randn(15, 2)))
    (tmp_path / "new.csv").write_text("sequence,ax,ay\n" + rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_earlier_file_of_predictions_is_replaced(folder):
    (folder / "out.csv").write_text("old")
    assert run("predict", "model", "new.csv", "--out", "out.csv", "-q") == 0
    lines = (folder / "out.csv").read_text().splitlines()
    assert lines[0] == "sequence,prediction,probability_off,probability_on"
    assert [line.split(",")[0] for line in lines[1:]] == ["s0", "s1", "s2"]
    assert run("predict", "model", "new.csv", "--out", "model/out.csv", "-q") == 0
    assert run("predict", "model", "new.csv", "--out", "model/out.csv", "-q") == 0
    assert (folder / "model" / "out.csv").read_bytes() == (folder / "out.csv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["predict", "model", "new.csv", "--out", "new.csv"], "out must be another file than the data, got 'new.csv'"),
        (["predict", "model", "new.csv", "--out", "again.csv"], "out must be another file than the data"),
        (["predict", "model", "new.csv", "--out", "model/bundle.json"], "--out must not replace a file of the run"),
        (["predict", "model", "new.csv", "--out", "model/metrics.csv"], "--out must not replace a file of the run"),
        (["predict", "model", "new.csv", "--out", "model"], "out must be a file in a folder that exists"),
        (["predict", "model", "new.csv", "--out", "none/out.csv"], "out must be a file in a folder that exists"),
        (["export", "model", "own.c"], "own.c' exists and was not exported by evenflow: choose another name"),
        (["export", "model", "model/bundle.json"], "the name of the file must end in .onnx or .c"),
    ],
    ids=["the data", "a link to the data", "the bundle", "the metrics", "a folder", "no folder", "C", "not a format"],
)
def test_inputs_and_files_of_others_are_not_replaced(arguments, sentence, folder, capsys):
    (folder / "again.csv").symlink_to("new.csv")
    (folder / "model" / "metrics.csv").touch()
    (folder / "own.c").write_text("int main(void) { return 0; }\n")
    before = contents(folder)
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert contents(folder) == before
