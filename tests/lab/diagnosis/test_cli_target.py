"""The targets of ``evenflow doctor``: run folders, files of weights, and named systems."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from evenflow import RNN, SequenceModel, create
from evenflow.lab import cli
from evenflow.lab.diagnosis import doctor
from evenflow.lab.diagnosis.cli_target import diagnose_target
from evenflow.lab.diagnosis.run_limits import affordable_sequences
from evenflow.lab.tasks import TASKS, make
from evenflow.lab.tasks.synthetic import Synthetic
from evenflow.lab.training import Run, train


def command(*arguments):
    with pytest.raises(SystemExit) as left:
        cli.main(["doctor", *map(str, arguments)])
    return left.value.code


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "adding"
    config = {
        "task": {"name": "adding", "length": 20},
        "system": {"name": "rnn", "hidden_size": 8},
        "training": {"steps": 4, "batch_size": 5, "validate_every": 2, "validation_batches": 1},
    }
    train(config, folder, progress=False)
    return folder


def test_command_on_a_fresh_system(capsys):
    assert command("sgornn", "--hidden", 8, "--length", 30, "--input", 3) == 0
    shown = capsys.readouterr().out
    assert "ScalarGatedRNN of evenflow, relu: 3 inputs, 8 units; 4 sequences of 30 steps." in shown
    assert "Measured: gradients are " in shown


def test_command_on_a_run(run, capsys):
    assert command(run, "--weights", "last") == 0
    shown = capsys.readouterr().out
    assert "RNN of evenflow, tanh: 2 inputs, 8 units" in shown
    assert "Loss: ‖∂L/∂h_t‖" in shown


def test_a_runs_weights_are_the_ones_looked_at(run):
    best = diagnose_target(str(run))
    fresh = create("rnn", 2, 8)
    fresh.load_state_dict({k.removeprefix("layer."): v for k, v in Run(run).weights("best").items() if "layer." in k})
    expected = torch.linalg.svdvals(fresh.weight_hh_l0.detach().double())
    np.testing.assert_allclose(best.spectra[0].singular_values, expected.numpy(), rtol=1e-6)


def test_a_config_cannot_ask_for_more_than_the_weights_have(run, tmp_path):
    """A layer of two million units was built before its weights were looked at."""
    shutil.copytree(run, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("hidden_size = 8", "hidden_size = 2000000"))
    with pytest.raises(ValueError) as error:
        diagnose_target(str(tmp_path / "run"))
    assert str(error.value) == (
        f"hidden_size in config.toml of run '{tmp_path / 'run'}' must be at most 8, the largest size of its weights, "
        "got 2000000"
    )


def with_config(run, folder, old, new):
    """A copy of the run with a part of its config replaced."""
    shutil.copytree(run, folder)
    config = (folder / "config.toml").read_text()
    assert old in config
    (folder / "config.toml").write_text(config.replace(old, new))
    return folder


@pytest.mark.parametrize(
    ("length", "steps", "needed"), [(50_000_000, "50,000,000", "27"), (10**12, "1,000,000,000,000", "521,541")]
)
def test_a_config_cannot_ask_for_sequences_of_many_gigabytes(run, tmp_path, length, steps, needed, capsys):
    folder = with_config(run, tmp_path / "run", "length = 20", f"length = {length}")
    assert command(folder) == 2
    assert capsys.readouterr().err == (
        f"evenflow: sequences in config.toml of run '{folder}' must need at most 1 GB each, got {steps} steps, which "
        f"need about {needed} GB: call evenflow.doctor(model, batch) with shorter ones\n"
    )


def test_long_sequences_are_measured_on_fewer_of_them():
    counts = [affordable_sequences(Path("run"), make("adding", length=n), 64, 8) for n in (20, 50_000, 290_000)]
    assert counts == [8, 5, 1]


def test_a_config_cannot_ask_for_more_symbols_than_the_weights_have(tmp_path):
    config = {
        "task": {"name": "copy", "length": 3, "items": 2, "symbols": 4},
        "system": {"name": "rnn", "hidden_size": 6},
        "training": {"steps": 1, "batch_size": 2, "validation_batches": 1},
    }
    train(config, tmp_path / "small", progress=False)
    folder = with_config(tmp_path / "small", tmp_path / "run", "symbols = 4", "symbols = 2000000000")
    with pytest.raises(ValueError, match=r"^inputs of the task in config.toml of run .* must be at most 6,"):
        diagnose_target(str(folder))


@pytest.mark.parametrize("name", [name for name, kind in TASKS.items() if issubclass(kind, Synthetic)])
def test_every_task_that_draws_its_sequences_has_this_limit(name):
    """Its steps are known before they are drawn."""
    with pytest.raises(ValueError, match="must need at most 1 GB each"):
        affordable_sequences(Path("run"), make(name, length=50_000_000).held_out(), 64, 8)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_weights_of_torchs_modules_in_a_file(kind, tmp_path):
    model = nn.ModuleDict({"rnn": kind(3, 6, 2, bidirectional=True), "head": nn.Linear(12, 1)})
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    found = diagnose_target(str(tmp_path / "weights.pt"), length=20)
    assert len(found.rates) == 4
    expected = doctor(model["rnn"], torch.randn(20, 4, 3, generator=torch.Generator().manual_seed(1)), steps=20)
    np.testing.assert_allclose(found.profile, expected.profile)


OURS = {
    "lstm": {"forget_bias": 5.0},
    "lstm-peephole": {"num_layers": 2},
    "lstm-1997": {"bidirectional": True},
    "gru": {"bias": False, "initial_state": "learned"},
}


@pytest.mark.parametrize("name", OURS)
def test_weights_that_tell_their_layer_of_evenflow(name, tmp_path):
    model = SequenceModel(create(name, 3, 6, **OURS[name]), 1)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    before = torch.get_rng_state()
    found = diagnose_target(str(tmp_path / "weights.pt"), length=20)
    assert torch.equal(torch.get_rng_state(), before)
    expected = doctor(model.layer, torch.randn(20, 4, 3, generator=torch.Generator().manual_seed(1)), steps=20)
    assert str(found) == str(expected)
    np.testing.assert_allclose(found.profile, expected.profile)


@pytest.mark.parametrize("name", ["rnn", "irnn", "fastrnn", "esn", "scrn", "ugru", "gated-feedback"])
def test_weights_that_do_not_tell_their_layer_are_refused(name, tmp_path):
    layer = create(name, 3, 6)
    torch.save(SequenceModel(layer, 1).state_dict(), tmp_path / "weights.pt")
    names = list(layer.state_dict())
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    with pytest.raises(ValueError) as refused:
        diagnose_target(str(tmp_path / "weights.pt"), length=20)
    assert f"got {shown}, which do not tell what layer they are of" in str(refused.value)
    assert str(refused.value).endswith("through its run folder, or evenflow.doctor(model, batch)")


def test_weights_of_torch_with_more_than_torch_has_are_refused(tmp_path):
    torch.save(nn.GRU(2, 4).state_dict() | {"gate_l0": torch.ones(1)}, tmp_path / "more.pt")
    with pytest.raises(ValueError, match="bias_hh_l0, gate_l0, which do not tell"):
        diagnose_target(str(tmp_path / "more.pt"))


def test_a_pickled_module_is_refused_unless_trusted(tmp_path, capsys):
    path = tmp_path / "module.pt"
    torch.save(nn.GRU(3, 6), path)
    assert command(path) == 2
    assert "could run any code" in capsys.readouterr().err
    assert command(path, "--trusted", "--length", 10) == 0
    assert "GRU of torch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sgorn"], "'sgorn' is no run folder and no file: unknown system 'sgorn', did you mean sgornn"),
        (["rnn", "--weights", "best"], "weights goes with a run folder, got 'best' for 'rnn'"),
        (["rnn", "--hidden", "0"], "hidden must be a whole number of at least 1, got 0"),
        (["rnn", "--length", "0"], "length must be a whole number of at least 2, got 0"),
    ],
    ids=["unknown", "weights", "hidden", "length"],
)
def test_command_refuses(arguments, message, capsys):
    assert command(*arguments) == 2
    assert message in capsys.readouterr().err


def test_command_refuses_files_and_folders_that_hold_nothing(tmp_path, run, capsys):
    assert command(tmp_path) == 2
    assert "holds no run" in capsys.readouterr().err
    assert command(run, "--weights", "first") == 2
    assert "weights must be one of best, last, got 'first'" in capsys.readouterr().err
    (tmp_path / "noise.pt").write_bytes(b"noise")
    assert command(tmp_path / "noise.pt") == 2
    assert "noise.pt" in capsys.readouterr().err
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "linear.pt")
    assert command(tmp_path / "linear.pt") == 2
    assert "must hold the weights of one recurrent module of torch" in capsys.readouterr().err
    torch.save(RNN(2, 4, map="exponential").state_dict(), tmp_path / "ours.pt")
    assert command(tmp_path / "ours.pt") == 2
    assert "run folder" in capsys.readouterr().err


def test_damaged_best_weights_are_not_passed_over(tmp_path):
    train({"task": {"name": "adding", "length": 8}, "system": {"name": "rnn", "hidden_size": 4},
           "training": {"steps": 4, "batch_size": 2, "validate_every": 2, "validation_batches": 1}},
          tmp_path / "run", progress=False)  # fmt: skip
    diagnose_target(str(tmp_path / "run"))
    (tmp_path / "run" / "checkpoint" / "best.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="best"):
        diagnose_target(str(tmp_path / "run"))


@pytest.mark.parametrize(("name", "value"), [("hidden", 5), ("input", 3), ("length", 5)])
def test_what_a_run_has_of_its_own_is_not_passed_over(name, value, tmp_path):
    with pytest.raises(ValueError, match=rf"^{name} must be left out for '.*', which has its own, got {value}$"):
        diagnose_target(str(tmp_path), **{name: value})
