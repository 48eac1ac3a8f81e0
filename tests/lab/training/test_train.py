from __future__ import annotations

import re
import tomllib

import numpy as np
import pytest
import torch

import evenflow
from evenflow.lab.training import Run, build, fit, read_config, resume, train

CONFIG = {
    "task": {"name": "adding", "length": 8},
    "system": {"name": "urnn", "hidden_size": 6, "activation": "relu"},
    "training": {"steps": 6, "batch_size": 4, "validate_every": 3, "validation_batches": 1, "device": "cpu", "seed": 5},
}


def changed(table: str, **values):
    return CONFIG | {table: CONFIG[table] | values}


def test_a_run_from_a_config(tmp_path):
    result = train(CONFIG, tmp_path / "run")
    assert isinstance(result.model, evenflow.SequenceModel)
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert written["system"] == CONFIG["system"]
    assert written["task"] == {"name": "adding", "length": 8, "variant": "sgornn"}
    assert written["training"].items() >= CONFIG["training"].items()
    assert list(written) == ["task", "system", "training"]
    # What is written describes the run in full: it can be trained again from it.
    again = train(written, tmp_path / "again")
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor)


def test_starting_weights_come_from_the_seed_alone():
    task, system, _ = read_config(CONFIG)
    state = torch.get_rng_state()
    first, again, other = build(task, system, 1), build(task, system, 1), build(task, system, 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.output.weight, again.output.weight)
    assert torch.equal(first.layer.weight_hh_l0, again.layer.weight_hh_l0)
    assert not torch.equal(first.output.weight, other.output.weight)


def test_hidden_units_of_the_readout_are_an_option_of_the_system(tmp_path):
    config = CONFIG | {"system": CONFIG["system"] | {"readout_units": 5}}
    result = train(config, tmp_path / "run")
    assert result.model.hidden.out_features == 5
    saved = resume(tmp_path / "run").model.state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in result.model.state_dict().items())


def test_residual_blocks_are_an_option_of_the_system(tmp_path):
    blocks = {"block": "residual", "num_layers": 2, "dropout": 0.1}
    config = changed("training", probe_every=2)
    result = train(config | {"system": config["system"] | blocks}, tmp_path / "run")
    stack = result.model.layer
    assert len(stack.layers) == 2
    assert stack.encoder.in_features == result.task.input_size
    assert [block.dropout.p for block in stack.blocks] == [0.1, 0.1]
    saved = resume(tmp_path / "run").model.state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in result.model.state_dict().items())
    with np.load(tmp_path / "run" / "probes.npz") as probes:
        assert probes["layer_norm"].shape[1] == 2
        np.testing.assert_allclose(probes["gradient_norm"], probes["layer_norm"][:, 1], rtol=1e-6)


def test_without_a_folder():
    assert train(CONFIG).folder is None


def test_resume_of_a_finished_run(tmp_path):
    first = train(CONFIG, tmp_path / "run")
    metrics = (tmp_path / "run" / "metrics.csv").read_bytes()
    assert resume(tmp_path / "run").valid_metric == first.valid_metric
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == metrics


def test_resume_of_a_run_killed_before_its_first_checkpoint(tmp_path):
    first = train(CONFIG, tmp_path / "run")
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "config.toml").write_bytes((tmp_path / "run" / "config.toml").read_bytes())
    assert resume(tmp_path / "early").valid_metric == first.valid_metric


def test_resume_from_an_older_checkpoint_when_the_latest_is_damaged(tmp_path):
    config = changed("training", checkpoint_every=4, probe_every=2)
    first = train(config, tmp_path / "run")
    weights = tmp_path / "run" / "checkpoint" / "step-000000006" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x00\x00\xc0\x7f")
    with pytest.warns(UserWarning, match="step-000000006 is damaged, resuming from step-000000004"):
        second = resume(tmp_path / "run")
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor)
    assert second.history["loss"].tolist() == first.history["loss"].tolist()
    assert second.probes["step"].tolist() == [0, 2, 4, 6]


def test_resume_when_every_checkpoint_is_damaged(tmp_path):
    train(CONFIG, tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoint").glob("step-*/state.pt"):
        file.write_bytes(b"")
    before = {p: p.read_bytes() for p in (tmp_path / "run").glob("*") if p.is_file()}
    with pytest.raises(ValueError, match=r"^checkpoint .*step-000000006 is damaged and there is no older one"):
        resume(tmp_path / "run")
    assert {p: p.read_bytes() for p in before} == before


def test_resume_when_the_config_was_changed(tmp_path):
    train(CONFIG, tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("hidden_size = 6", "hidden_size = 8"))
    with pytest.raises(ValueError, match=r"system.hidden_size \(was 6, is 8\); system.hidden_size may not change"):
        resume(tmp_path / "run")
    file.write_text("this is not = = toml")
    with pytest.raises(ValueError, match=r"^config.toml of run '.*run' cannot be read"):
        resume(tmp_path / "run")


def test_resume_of_a_run_with_a_model_of_its_own(tmp_path):
    task, system, settings = read_config(CONFIG)
    fit(build(task, system, 0), task, folder=tmp_path / "run", **settings.to_dict())
    with pytest.raises(ValueError, match=r"^run '.*run' was made by fit with a model of its own: call fit"):
        resume(tmp_path / "run")


def test_a_run_is_not_overwritten(tmp_path):
    train(CONFIG, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.csv").read_bytes()
    with pytest.raises(ValueError, match=r"^folder '.*run' holds a run already: resume it or choose another folder$"):
        train(CONFIG, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == before
    assert Run(tmp_path / "run").status["state"] == "finished"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"system": CONFIG["system"]}, "config must have a table task with a name"),
        ({"task": CONFIG["task"]}, "config must have a table system with a name"),
        (CONFIG | {"tasks": {}}, "unknown table of the config 'tasks', did you mean task?"),
        (CONFIG | {"training": 3}, "training must be a table of the config, got 3"),
        (changed("system", hidden_size=0), "hidden_size must be a whole number of at least 1, got 0"),
        (changed("task", name="addin"), "unknown task 'addin', did you mean adding?"),
        (changed("training", step=3), "unknown training setting 'step', did you mean steps?"),
        (changed("system", name="urn"), "unknown system 'urn', did you mean urnn"),
    ],
    ids=["no task", "no system", "table", "not a table", "hidden size", "task", "setting", "system"],
)
def test_wrong_configs(config, sentence, tmp_path):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_unknown_options_of_a_system_are_refused(tmp_path):
    with pytest.raises(ValueError, match="colour"):
        train(changed("system", colour="red"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
