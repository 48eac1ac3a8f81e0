from __future__ import annotations

import pytest
import torch

from evenflow import SequenceModel, create
from evenflow.lab.tasks import Adding
from evenflow.lab.training import Run, fit, resume, train

TRAINING = {"batch_size": 4, "validate_every": 4, "validation_batches": 1, "checkpoint_every": 4, "device": "cpu"}


def config(**training):
    shared = {"task": {"name": "adding", "length": 6}, "system": {"name": "rnn", "hidden_size": 4}}
    return shared | {"training": TRAINING | training}


def equal(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    "schedule", [{}, {"schedule": "exponential", "decay_every": 5}, {"schedule": "constant", "warmup": 6}]
)
def test_a_longer_run_is_one_that_was_long_from_the_start(tmp_path, schedule):
    train(config(steps=8, lr=0.01, **schedule), tmp_path / "short", progress=False)
    result = resume(tmp_path / "short", steps=20, progress=False)
    assert result.steps == 20
    train(config(steps=20, lr=0.01, **schedule), tmp_path / "long", progress=False)
    short, long = Run(tmp_path / "short"), Run(tmp_path / "long")
    assert equal(short.weights(), long.weights())
    assert equal(short.weights("best"), long.weights("best"))
    assert short.status == long.status
    assert short.config.pop("changed") == {"steps": [8]}
    assert short.config == long.config


def test_a_schedule_that_depends_on_the_length_says_so(tmp_path):
    train(config(steps=8, lr=0.01, schedule="linear"), tmp_path / "run", progress=False)
    with pytest.warns(UserWarning, match=r"^schedule linear .* goes on at 0.006, as in a run of 20 updates"):
        resume(tmp_path / "run", steps=20, progress=False)
    metrics = Run(tmp_path / "run").metrics
    lrs = dict(zip(metrics["step"].tolist(), metrics["lr"].tolist(), strict=True))
    assert lrs[8] == pytest.approx(0.01 / 8)
    assert lrs[10] == pytest.approx(0.01 * 11 / 20)
    assert lrs[20] == pytest.approx(0.01 / 20)


def test_a_curriculum_says_so(tmp_path):
    table = config(steps=4) | {"task": {"name": "curriculum", "task": "adding", "length": 6, "start": 2}}
    train(table, tmp_path / "run", progress=False)
    with pytest.warns(UserWarning, match=r"^task curriculum depends on the number of updates: it goes on .* of 8$"):
        resume(tmp_path / "run", steps=8, progress=False)


@pytest.mark.parametrize(
    ("training", "steps", "sentence"),
    [
        ({}, 8, r"^steps must be more than the 8 of run '.*run', got 8$"),
        ({}, 0, r"^steps must be a whole number of at least 1, got 0$"),
        (
            {"patience": 1, "lr": 1e-12, "schedule": "step", "decay": 1e-9, "decay_every": 1},
            20,
            r"stopped early at step",
        ),
    ],
)
def test_what_is_refused(tmp_path, training, steps, sentence):
    train(config(steps=8, **training), tmp_path / "run", progress=False)
    before = (tmp_path / "run" / "config.toml").read_bytes()
    with pytest.raises(ValueError, match=sentence):
        resume(tmp_path / "run", steps=steps, progress=False)
    assert (tmp_path / "run" / "config.toml").read_bytes() == before


def test_a_run_from_the_weights_of_another(tmp_path, monkeypatch):
    first = train(config(steps=8, lr=0.05), tmp_path / "first", progress=False)
    monkeypatch.chdir(tmp_path)
    train(config(steps=4, lr=0.01, start_from="first"), tmp_path / "second", progress=False)
    assert Run(tmp_path / "second").config["training"]["start_from"] == str(tmp_path / "first")
    model = SequenceModel(create("rnn", 2, 4), 1)
    model.load_state_dict(first.best_weights)
    fit(model, Adding(length=6), steps=4, lr=0.01, **TRAINING)
    assert equal(Run(tmp_path / "second").weights(), model.state_dict())
    (tmp_path / "first").rename(tmp_path / "moved")
    assert resume(tmp_path / "second", progress=False).steps == 4


@pytest.mark.parametrize(
    ("hidden_size", "start", "sentence"),
    [
        (5, "first", r"^weights in run '.*first' do not fit the model: .* has shape"),
        (4, "none", r"^folder '.*none' holds no run"),
    ],
)
def test_a_start_that_is_refused_leaves_nothing(tmp_path, hidden_size, start, sentence):
    train(config(steps=1), tmp_path / "first", progress=False)
    table = config(steps=4, start_from=str(tmp_path / start)) | {"system": {"name": "rnn", "hidden_size": hidden_size}}
    with pytest.raises(ValueError, match=sentence):
        train(table, tmp_path / "second", progress=False)
    assert not (tmp_path / "second").exists()
