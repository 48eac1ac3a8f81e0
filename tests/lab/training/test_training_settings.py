from __future__ import annotations

import dataclasses
import re
import tomllib

import pytest
import tomli_w

from evenflow import checks
from evenflow.lab.training import OPTIMIZERS, Settings
from evenflow.lab.training.settings import OWN_METHODS


def test_toml_round_trip():
    for settings in (
        Settings(),
        Settings(clip_norm=1.0, patience=3, probe_every=10, optimizer="sgd", momentum=0.9, nesterov=True, seed=2**60),
    ):
        assert Settings.from_dict(tomllib.loads(tomli_w.dumps(settings.to_dict()))) == settings


def test_whole_numbers_stand_for_decimals():
    assert Settings.from_dict({"lr": 1, "clip_norm": 2}).to_dict()["clip_norm"] == 2.0
    assert type(Settings.from_dict({"lr": 1}).lr) is float


def test_every_setting_has_a_help_text():
    assert all(field.metadata["help"] for field in dataclasses.fields(Settings))


def test_a_weight_decay_that_is_left_out_is_the_optimizers():
    assert Settings(optimizer="adamw").difference(Settings(optimizer="adamw", weight_decay=0.01)) is None
    assert Settings().difference(Settings(weight_decay=0.0)) is None
    assert Settings(weight_decay=0.01).difference(Settings()) == "weight_decay"
    Settings(optimizer="hessian-free", weight_decay=0.0)  # as configs of older runs say


def test_difference_names_the_first_setting_and_leaves_the_device_free():
    assert Settings().difference(Settings(device="cpu")) is None
    assert Settings().difference(Settings(lr=0.1, seed=4)) == "lr"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"batch_size": 1.5}, "batch_size must be a whole number of at least 1, got 1.5"),
        ({"lr": 0}, "lr must be a number above 0, got 0.0"),
        ({"lr": float("nan")}, "lr must be a number above 0, got nan"),
        ({"lr": "fast"}, "lr must be a number above 0, got 'fast'"),
        ({"clip_norm": -1.0}, "clip_norm must be a number above 0, got -1.0"),
        ({"clip_value": 0.0}, "clip_value must be a number above 0, got 0.0"),
        ({"momentum": 1.0}, "momentum must be a number of at least 0 and below 1, got 1.0"),
        ({"weight_decay": -0.1}, "weight_decay must be a number of at least 0, got -0.1"),
        ({"patience": 0}, "patience must be a whole number of at least 1, got 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"nesterov": 1}, "nesterov must be true or false, got 1"),
        (
            {"optimizer": "lion"},
            f"optimizer must be one of {', '.join((*OPTIMIZERS, *OWN_METHODS))}, got 'lion'",
        ),
        ({"bases": "qr"}, "bases must be one of sgd, adam, got 'qr'"),
        ({"map_lr": 0}, "map_lr must be a number above 0, got 0.0"),
        ({"bases_lr": 0}, "bases_lr must be a number above 0, got 0.0"),
        ({"penalty": "stabiliser"}, "unknown penalty 'stabiliser', did you mean stabilizer?"),
        ({"structural": -1.0}, "structural must be a number of at least 0, got -1.0"),
        ({"psi": 0.5}, "psi goes with optimizer temporal-simplex, got 0.5 without it"),
        ({"damping": 1.0}, "damping goes with optimizer hessian-free, got 1.0 without it"),
        (
            {"optimizer": "hessian-free", "clip_norm": 1.0},
            "clip_norm goes with an optimizer that follows the gradient, got 1.0 without it",
        ),
        (
            {"optimizer": "hessian-free", "lr": 0.1},
            "lr goes with an optimizer other than hessian-free, which finds its own, got 0.1 without it",
        ),
        (
            {"optimizer": "temporal-simplex", "penalty": "stabilizer"},
            "penalty goes with an optimizer that follows the gradient, got 'stabilizer' without it",
        ),
        (
            {"schedule": "cosin"},
            "schedule must be one of constant, linear, cosine, exponential, step, one-cycle, plateau, got 'cosin'",
        ),
        ({"warmup": 1000}, "warmup must be below the 1000 updates of the run, got 1000"),
        ({"clip_scope": "none"}, "clip_scope must be one of all, recurrent, each, mapped, got 'none'"),
        ({"precision": "8"}, "precision must be one of 32-true, tf32, 64-true, bf16-mixed, bf16-true, got '8'"),
        ({"device": "tpu"}, "device must be auto, cpu, cuda, cuda:N or mps, got 'tpu'"),
        ({"device": "cuda:x"}, "device must be auto, cpu, cuda, cuda:N or mps, got 'cuda:x'"),
        ({"device": "cpu:1"}, "device must be auto, cpu, cuda, cuda:N or mps, got 'cpu:1'"),
        ({"momentum": 0.9}, "momentum goes with sgd and rmsprop, got momentum 0.9 with adam"),
        (
            {"optimizer": "sgd", "nesterov": True},
            "nesterov needs sgd with a momentum above 0, got sgd with momentum 0.0",
        ),
        ({"eps": 0.0}, "eps must be a number above 0, got 0.0"),
        ({"learning_rate": 0.1}, "unknown training setting 'learning_rate', did you mean lr?"),
        ({"rate": 0.1}, "unknown training setting 'rate', did you mean lr?"),
        ({"map_rate": 0.1}, "unknown training setting 'map_rate', did you mean map_lr?"),
        ({"smoothing": 0.1}, "unknown training setting 'smoothing', did you mean alpha?"),
    ],
    ids=lambda value: next(iter(value.items())).__repr__() if isinstance(value, dict) else "",
)
def test_wrong_settings(options, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Settings.from_dict(options)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"alpha": 0.5}, "alpha goes with optimizer rmsprop, got 0.5 without it"),
        (
            {"eps": 1e-3, "optimizer": "sgd"},
            "eps goes with optimizer adam, rmsprop, adamw, nadam, radam, adamax, adagrad, muon, got 0.001 without it",
        ),
        ({"decay": 0.9}, "decay goes with schedule exponential, step or plateau, got 0.9 without it"),
        (
            {"decay_every": 7, "schedule": "linear"},
            "decay_every goes with schedule exponential or step, got 7 without it",
        ),
        ({"decay_patience": 2}, "decay_patience goes with schedule plateau, got 2 without it"),
        ({"clip_scope": "recurrent"}, "clip_scope goes with a clip_norm or clip_value, got 'recurrent' without it"),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(settings, sentence):
    with pytest.raises(ValueError) as error:
        Settings(**settings)
    assert str(error.value) == sentence
    Settings(alpha=0.5, optimizer="rmsprop", decay=0.9, schedule="step", clip_scope="recurrent", clip_norm=1.0)


def test_a_number_too_large_for_a_float_is_refused():
    with pytest.raises(ValueError, match=r"^lr must be a finite number, got one of more than 300 digits$"):
        Settings.from_dict({"lr": 10**400})


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan"), True, "1"])
def test_what_is_no_finite_number(value):
    with pytest.raises(ValueError, match=r"^lr must be a finite number, got "):
        checks.number("lr", value)
