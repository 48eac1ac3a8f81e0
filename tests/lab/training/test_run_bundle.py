"""Every run folder predicts: without its data, in another process, with the best weights, in the user's units."""

from __future__ import annotations

import csv
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import evenflow
from evenflow.lab import cli
from evenflow.lab.tasks import TASKS, make
from evenflow.lab.training import Run, fit, resume, train, train_population
from evenflow.models import SequenceModel

TRAINING = {"steps": 60, "batch_size": 8, "lr": 0.02, "validate_every": 20, "device": "cpu"}
GRU = {"name": "gru", "hidden_size": 8}


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(a) for a in arguments])
    return left.value.code


def windows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows of two columns and the mean of the first, in units of hundreds."""
    draw = np.random.RandomState(seed)
    x = np.stack([500 + 100 * draw.randn(count, 1) + draw.randn(count, 6), draw.randn(count, 6)], -1)
    return x, 3 * x[..., 0].mean(1)


@pytest.fixture
def numbers(tmp_path):
    """A run that learned numbers, and its data moved away."""
    x, y = windows(80, 0)
    np.savez(tmp_path / "speed.npz", x=x, y=y)
    config = {"task": {"name": f"npz:{tmp_path / 'speed.npz'}"}, "system": GRU, "training": {**TRAINING, "steps": 200}}
    result = train(config, tmp_path / "run", progress=False)
    (tmp_path / "speed.npz").unlink()
    return tmp_path / "run", result


def test_numbers_come_in_the_units_of_the_file(numbers):
    folder, result = numbers
    x, y = windows(40, 1)
    error = np.sqrt(np.mean((evenflow.load(folder).predict(x) - y) ** 2))
    assert error < y.std() / 3
    assert result.best_metric == pytest.approx(error, rel=0.8)  # measured in the same units, on other windows
    assert Run(folder).status["best_metric"] == result.best_metric
    assert result.best_loss == pytest.approx(result.best_metric**2, rel=1e-4)


def test_the_best_weights_predict(tmp_path):
    task, folder = make("adding", length=8), tmp_path / "run"
    result = fit(SequenceModel(evenflow.create("gru", 2, 4), 1), task, folder=folder, progress=False, **TRAINING)
    x = np.random.RandomState(0).rand(5, 8, 2)
    np.testing.assert_array_equal(evenflow.load(folder).predict(x), result.predictor().predict(x))
    for name, weight in evenflow.load(folder).model.state_dict().items():
        assert torch.equal(weight, result.best_weights[name])


def test_another_process_without_the_data(numbers):
    folder, _ = numbers
    code = f"import evenflow, numpy; print(evenflow.load({str(folder)!r}).predict(numpy.ones((3, 6, 2))).shape)"
    lab = "import sys; sys.modules['lightning_fabric'] = sys.modules['typer'] = sys.modules['pandas'] = None\n"
    result = subprocess.run([sys.executable, "-c", lab + code], capture_output=True, text=True)
    assert result.stdout.strip() == "(3,)", result.stderr


def test_a_report_and_a_diagnosis_without_the_data(numbers, capsys):
    folder, _ = numbers
    assert run("report", folder) == 0
    assert run("doctor", folder) == 0
    assert "the inputs are random, since the data of the run are gone" in capsys.readouterr().err
    evenflow.save(evenflow.load(folder), folder.parent / "saved")
    assert run("doctor", folder.parent / "saved") == 0


def test_a_run_that_is_under_way_says_so(tmp_path):
    model = SequenceModel(evenflow.create("gru", 2, 4), 1)
    fit(model, make("adding", length=8), folder=tmp_path / "run", progress=False, **{**TRAINING, "steps": 2})
    (tmp_path / "run" / "checkpoint" / "best.safetensors").unlink()
    with pytest.raises(
        ValueError, match=r"has no weights in checkpoint/best.safetensors: the run has not been validated"
    ):
        evenflow.load(tmp_path / "run")


def test_a_folder_of_an_early_version(numbers):
    folder, _ = numbers
    (folder / "bundle.json").unlink()
    with pytest.raises(
        ValueError, match=r"^run '.*' has no bundle.json: it is from a version that did not save how to"
    ):
        evenflow.load(folder)


def test_resuming_adds_the_file(tmp_path):
    config = {"task": {"name": "adding", "length": 8}, "system": GRU, "training": {**TRAINING, "steps": 2}}
    train(config, tmp_path / "run", progress=False)
    (tmp_path / "run" / "bundle.json").unlink()
    resume(tmp_path / "run", progress=False)
    assert evenflow.load(tmp_path / "run").predict(np.ones((1, 8, 2))).shape == (1,)


def test_every_run_of_a_population_is_a_bundle(tmp_path):
    system = {"name": "rnn", "hidden_size": 8}
    config = {"task": {"name": "adding", "length": 8}, "system": system, "training": {**TRAINING, "steps": 2}}
    configs = [{**config, "training": {**config["training"], "seed": seed}} for seed in (0, 1)]
    folders = [tmp_path / "a", tmp_path / "b"]
    train_population(configs, folders, progress=False)
    first, second = (evenflow.load(folder).predict(np.ones((1, 8, 2))) for folder in folders)
    assert first != second


class _OwnModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = evenflow.create("rnn", 2, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, x, state=None):
        return self.out(self.layer(x, state)[0][-1]), None


def test_a_model_of_ones_own_trains_and_says_that_it_cannot_be_loaded(tmp_path):
    fit(_OwnModel(), make("adding", length=8), folder=tmp_path / "run", progress=False, **{**TRAINING, "steps": 2})
    sentence = r"^the model of '.*' cannot be made again: it was made with a model of its own, _OwnModel$"
    with pytest.raises(ValueError, match=sentence):
        evenflow.load(tmp_path / "run")


SMALL = {"adding": {"length": 10}, "copy": {"length": 10}, "xor": {"length": 10}, "curriculum": {"length": 10}}


@pytest.mark.parametrize("name", ["adding", "copy", "xor", "digits", "curriculum", "recall-first", "temporal-order"])
def test_schemas_of_tasks_fit_their_models(name, tmp_path):
    assert name in TASKS
    task = make(name, **SMALL.get(name, {}))
    train(
        {"task": {"name": name, **SMALL.get(name, {})}, "system": GRU, "training": {**TRAINING, "steps": 1}},
        tmp_path / "run",
        progress=False,
    )
    batch = task.held_out().batch(5, torch.Generator().manual_seed(0))
    found = evenflow.load(tmp_path / "run").predict(batch.inputs.transpose(0, 1))
    assert len(found) == 5
    assert evenflow.load(tmp_path / "run").schema.kind == (
        "classification" if task.metric_name == "accuracy" and batch.targets.dtype == torch.int64 else "regression"
    )


@pytest.fixture
def motion(tmp_path):
    draw, lines = np.random.RandomState(0), ["id,ax,class"]
    for number in range(24):
        lines += [
            f"{number},{draw.randn() + 8 * (number % 2)},{('rest', 'walk')[number % 2]}" for _ in range(3 + number % 4)
        ]
    path = tmp_path / "motion.csv"
    path.write_text("\n".join(lines))
    return path


def test_from_a_file_to_predictions_on_the_command_line(motion, tmp_path, capsys):
    folder, out = tmp_path / "run", tmp_path / "predictions.csv"
    options = ["--hidden", 8, "--steps", 80, "--lr", 0.02, "--batch-size", 8, "-t", "sequence=id", "-t", "target=class"]
    assert run("train", f"csv:{motion}", "gru", "--folder", folder, *options, "-q") == 0
    assert f"evenflow predict {folder} NEW.csv" in capsys.readouterr().out
    new = motion.rename(tmp_path / "new.csv")
    assert run("predict", folder, new, "--out", out) == 0
    rows = list(csv.DictReader(out.open()))
    assert list(rows[0]) == ["id", "prediction", "probability_rest", "probability_walk"]
    assert [row["prediction"] for row in rows] == ["rest", "walk"] * 12
    assert run("evaluate", folder, new) == 0
    shown = capsys.readouterr().out
    assert "Accuracy 1.0000 of 24 predictions for 24 sequences." in shown
    assert "precision" in shown


def test_errors_on_the_command_line(numbers, motion, tmp_path, capsys):
    folder, _ = numbers
    for arguments, sentence in [
        (["predict", folder, motion], "it has no column 'x0', found 'id', 'ax', 'class'"),
        (["predict", tmp_path, motion], "holds no model: it has no bundle.json"),
        (["predict", folder, tmp_path / "no.csv"], "there is no such file"),
        (["predict", folder, motion, "--horizon", 3], "horizon needs a model that predicts the next step, this one is"),
        (["export", folder, tmp_path / "model.h5"], "the name of the file must end in .onnx or .c, got"),
        (["export", folder, tmp_path / "no" / "model.onnx"], "the file must be in a folder that exists"),
    ]:
        assert run(*arguments) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert len(said.splitlines()) == 1


def test_an_exported_run_works_in_the_units_of_the_file(numbers, tmp_path, capsys):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    folder, _ = numbers
    assert run("export", folder, tmp_path / "model.onnx") == 0
    schema = evenflow.load(folder).schema
    inputs, outputs = (", ".join(column.name for column in columns) for columns in (schema.inputs, schema.targets))
    assert f"Inputs in order: {inputs}\nOutputs in order: {outputs}\n" in capsys.readouterr().out
    x, _ = windows(7, 1)
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    found = session.run(["y"], {"x": np.ascontiguousarray(x.transpose(1, 0, 2), np.float32)})[0]
    np.testing.assert_allclose(found[:, 0], evenflow.load(folder).predict(x), rtol=1e-4)
    assert run("export", folder, tmp_path / "model.c") == 0
    assert (tmp_path / "model.h").is_file()
