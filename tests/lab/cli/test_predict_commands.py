"""The commands `predict`, `evaluate`, `generate` and `export`: what they write, and what they leave alone."""

from __future__ import annotations

import numpy as np
import pytest

import evenflow
from evenflow.lab import cli
from evenflow.lab.data import vocabulary
from evenflow.lab.tasks import make
from evenflow.lab.training import train
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


@pytest.fixture
def text_run(small_data, tmp_path):
    """A run of words of the made text."""
    system = {"name": "gru", "hidden_size": 8}
    training = {"steps": 3, "batch_size": 2, "validation_batches": 1, "validate_every": 3}
    task = {"name": "ptb-words", "length": 4, "embedding": 4, "data": str(small_data)}
    train({"task": task, "system": system, "training": training}, tmp_path / "run", progress=False)
    return tmp_path / "run"


def test_a_text_is_continued(text_run, small_data, capsys):
    capsys.readouterr()
    words = vocabulary(small_data)
    start = f"{words[3]} never-seen"
    assert run("generate", text_run, start, "--steps", 5, "--greedy") == 0
    shown = capsys.readouterr().out.split()
    assert shown[:2] == [words[3], "<unk>"]
    assert len(shown) == 7
    assert set(shown) <= set(words)
    model, task = evenflow.load(text_run).model, make("ptb-words", data=str(small_data))
    expected = evenflow.generate(model, task.read(start), 5, greedy=True)
    assert " ".join(shown[2:]) == task.write(expected.tolist())
    drawn = []
    for seed in (1, 1, 2):
        assert run("generate", text_run, words[3], "--steps", 30, "--seed", seed) == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_text_of_characters_is_read_and_written(small_data):
    task = make("ptb-characters", data=str(small_data))
    known = [symbol for symbol in task.symbols() if symbol not in ("<unk>", "\n")][:3]
    text = "".join(known) + "<unk>\n"
    assert task.write(task.read(text).tolist()) == text
    assert task.read("\u20ac").tolist() == [task.symbols().index("<unk>")]


def test_only_text_is_continued(folder, text_run, capsys):
    config = {"task": {"name": "adding", "length": 4}, "system": {"name": "rnn", "hidden_size": 2}}
    train(config | {"training": {"steps": 1}}, "adding", progress=False)
    capsys.readouterr()
    for arguments, sentence in (
        (["adding", "a"], "run must be of a task over text, ptb-words or ptb-characters, got task adding"),
        ([text_run, " "], "the text must have at least one symbol, got ' '"),
        ([text_run, "a", "--greedy", "--temperature", "0.5"], "greedy draws nothing, so it cannot be combined with"),
    ):
        assert run("generate", *arguments) == 2
        assert sentence in capsys.readouterr().err.replace("\n", " ")


def test_the_name_of_a_trained_model_stands_in_place_of_a_run_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    columns = [column.name for column in evenflow.load("mnist-permuted-vprnn").schema.inputs]
    rows = "".join(",".join(["one", *map(str, row)]) + "\n" for row in np.random.RandomState(0).randn(9, 1).round(3))
    (tmp_path / "new.csv").write_text(",".join(["sequence", *columns]) + "\n" + rows)
    assert run("predict", "mnist-permuted-vprnn", "new.csv", "-q") == 0
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 2
    assert run("export", "mnist-permuted-vprnn", "model.c") == 0
    assert run("pretrained") == run("pretrained", "mnist-permuted-vprnn") == 0
    assert "measured with this bundle" in capsys.readouterr().out
    assert run("doctor", "mnist-permuted-vprnn") == 0
    assert run("predict", "mnist-permuted-vprn", "new.csv", "-q") == 2
    assert "did you mean mnist-permuted-vprnn?" in capsys.readouterr().err
    assert run("pretrained", "mnist-permuted-vprn") == 2
    assert run("report", "mnist-permuted-vprnn") == 2
    assert "the trained model of this name ships without its run" in capsys.readouterr().err.replace("\n", " ")
