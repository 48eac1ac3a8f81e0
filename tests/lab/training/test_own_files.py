"""Runs on a file of the user's own: few sequences, a file that changed, a file that moved."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import evenflow
from evenflow.lab import cli
from evenflow.lab.report import write_report
from evenflow.lab.tasks import make
from evenflow.lab.training import Run, build, fit, read_config, resume, train, train_population

TRAINING = {"steps": 2, "batch_size": 2, "device": "cpu"}
SYSTEM = {"name": "rnn", "hidden_size": 4}
DOCS = Path(__file__).parents[3] / "docs" / "data.md"


def config_of(file, **options):
    return {"task": {"name": f"csv:{file}", **options}, "system": SYSTEM, "training": TRAINING}


@pytest.fixture
def motion(tmp_path):
    rows = [f"{number},{number % 3 + step},{number % 2}" for number in range(8) for step in range(3)]
    path = tmp_path / "motion.csv"
    path.write_text("\n".join(["sequence,x,target", *rows]))
    return path


def change(file):
    file.write_text(file.read_text().replace("7,1,1", "7,9,1"))


def test_the_example_of_the_documentation_trains(tmp_path, capsys):
    example = re.search(r"```\n(sequence,time,.*?)```", DOCS.read_text(), re.DOTALL)[1]
    (tmp_path / "motion.csv").write_text(example)
    result = train(config_of(tmp_path / "motion.csv"), tmp_path / "run", progress=False)
    assert result.steps == 2
    assert make(f"csv:{tmp_path / 'motion.csv'}").count() == 1
    write_report([tmp_path / "run"])
    results = train_population([config_of(tmp_path / "motion.csv")] * 2, progress=False)
    assert [each.steps for each in results] == [2, 2]


def test_a_model_that_answers_one_sequence_wrongly_is_refused(tmp_path):
    (tmp_path / "two.csv").write_text("sequence,x,target\na,1,0\nb,2,1\n")
    task = make(f"csv:{tmp_path / 'two.csv'}")
    model = evenflow.SequenceModel(evenflow.create("rnn", 1, 4), 3)
    sentence = r"^model must answer one sequence of task csv with shape \(1, 2\), got \(1, 3\)$"
    with pytest.raises(ValueError, match=sentence):
        fit(model, task, progress=False, **TRAINING)


@pytest.mark.parametrize("form", ["npz", "csv", "classes"])
def test_one_sequence_with_one_target_is_refused(form, tmp_path):
    if form == "csv":
        (tmp_path / "one.csv").write_text("sequence,x,target\n" + "".join(f"a,{step},1.5\n" for step in range(300)))
        name = f"csv:{tmp_path / 'one.csv'}"
    else:
        arrays = {"x": np.ones((1, 300, 2)), "y": np.array([1.5] if form == "npz" else [1])}
        if form == "classes":
            arrays |= {"x_test": np.ones((1, 300, 2)), "y_test": np.array([0])}
        np.savez(tmp_path / "one.npz", **arrays)
        name = f"npz:{tmp_path / 'one.npz'}"
    sentence = (
        r"^'.*one\.(npz|csv)' holds one sequence with one target for all of its steps, and learning needs two "
        r"sequences, or a target at every step \(option read=every\)$"
    )
    with pytest.raises(ValueError, match=sentence):
        _ = make(name).input_size
    if form == "csv":
        assert make(name, read="every").count() == 2


def test_a_run_does_not_go_on_with_a_changed_file(motion, tmp_path):
    train(config_of(motion), tmp_path / "run", progress=False)
    train_population([config_of(motion)], [tmp_path / "one"], progress=False)
    before = Run(tmp_path / "run").config
    assert before["data"]["sha256"] == Run(tmp_path / "one").config["data"]["sha256"] == make(f"csv:{motion}").sha256()
    resume(tmp_path / "run", progress=False)
    change(motion)
    sentence = r"^file '.*motion.csv' is not the one that run '.*(run|one)' began with, its SHA-256 differs: put .*$"
    with pytest.raises(ValueError, match=sentence):
        resume(tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match=sentence):
        train_population([Run(tmp_path / "one").config], [tmp_path / "one"], resume=True, progress=False)
    assert Run(tmp_path / "run").config == before


def test_a_model_of_ones_own_does_not_go_on_with_a_changed_file(motion, tmp_path):
    task, system, _ = read_config(config_of(motion))
    model = build(task, system, 0)
    fit(model, task, folder=tmp_path / "run", progress=False, **TRAINING)
    fit(model, task, folder=tmp_path / "run", resume=True, progress=False, **TRAINING)
    change(motion)
    with pytest.raises(ValueError, match="SHA-256 differs"):
        fit(model, task, folder=tmp_path / "run", resume=True, progress=False, **TRAINING)


def test_a_run_from_before_files_were_noted_goes_on(motion, tmp_path):
    train(config_of(motion), tmp_path / "run", progress=False)
    file = tmp_path / "run" / "config.toml"
    table = tomllib.loads(file.read_text())
    del table["data"]
    file.write_text(tomli_w.dumps(table))
    change(motion)
    assert resume(tmp_path / "run", progress=False).steps == 2


def test_other_tasks_note_no_file(tmp_path):
    train({"task": {"name": "adding", "length": 5}, "system": SYSTEM, "training": TRAINING}, tmp_path, progress=False)
    assert "data" not in Run(tmp_path).config


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("to", ["file", "folder"])
def test_a_file_that_has_moved(seeds, to, motion, tmp_path, monkeypatch, capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            cli.main([str(a) for a in arguments])
        return left.value.code

    options = ["--hidden", "4", "--steps", "2", "--batch-size", "2", "--device", "cpu", "-q", "--seeds", seeds]
    assert run("train", f"csv:{motion}", "rnn", "--folder", tmp_path / "run", *options) == 0
    one = tmp_path / "run" / "seed-1" if seeds > 1 else tmp_path / "run"
    new = tmp_path / "elsewhere" / ("steps.csv" if to == "file" else motion.name)
    new.parent.mkdir()
    motion.rename(new)
    assert run("resume", tmp_path / "run", "-q") == 2
    assert "motion.csv" in capsys.readouterr().err
    monkeypatch.chdir(new.parent)
    assert run("resume", tmp_path / "run", "-q", "--data", new.name if to == "file" else ".") == 0
    monkeypatch.chdir(tmp_path)
    assert run("resume", tmp_path / "run", "-q") == 0, "the new place is noted in full"
    assert Run(one).config["task"]["file"] == str(motion)
    capsys.readouterr()
    change(new)
    other = new.rename(tmp_path / "changed.csv")
    assert run("resume", tmp_path / "run", "-q", "--data", other) == 2
    said = capsys.readouterr().err
    assert f"file {str(other)!r} is not the one that run" in said
    assert said.count("\n") == 1


def test_a_data_set_is_validated_once_an_epoch(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.RandomState(0).randn(40, 3, 1), y=np.arange(40) % 2)
    task = {"name": f"npz:{tmp_path / 'a.npz'}"}
    training = {"epochs": 20, "batch_size": 9, "device": "cpu", "patience": 3, "lr": 1e-9}
    train({"task": task, "system": SYSTEM, "training": training}, tmp_path / "run", progress=False)
    metrics = Run(tmp_path / "run").metrics
    validated = metrics["step"][~np.isnan(metrics["valid_loss"])]
    assert 4 <= len(validated) <= 20
    assert validated.tolist() == [4 * epoch for epoch in range(1, len(validated) + 1)]
    assert "validate_every" not in Run(tmp_path / "run").config["training"]
