"""A run that is taken further is the run that was long from the beginning."""

from __future__ import annotations

import math

import pytest
import torch

from evenflow.lab.training import NonFiniteLoss, Run, train
from evenflow.lab.training import extend_run as room
from evenflow.lab.training.extend_run import advance, read_score
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.progress import last_step

# The same float32 sums in another order, over a few updates.
SAME = 1e-4


def config(steps, lr=0.01, schedule="constant", **training):
    shared = {"batch_size": 4, "validate_every": 4, "validation_batches": 1, "checkpoint_every": 4, "device": "cpu"}
    own = {"steps": steps, "lr": lr, "schedule": schedule, "seed": 0}
    system = {"name": "urnn", "hidden_size": 4}
    return {"task": {"name": "adding", "length": 6}, "system": system, "training": shared | own | training}


def equal(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_the_same_bits_as_a_run_that_was_long_from_the_beginning(tmp_path):
    for steps in (4, 8, 20):
        advance([config(steps)], [tmp_path / "short"])
        assert read_score(tmp_path / "short", 0).updates == steps
    train(config(20), tmp_path / "long", progress=False)
    short, long = Run(tmp_path / "short"), Run(tmp_path / "long")
    assert equal(short.weights(), long.weights())
    assert equal(short.weights("best"), long.weights("best"))
    assert short.status == long.status
    assert short.config.pop("changed") == {"steps": [4, 8]}
    assert short.config == long.config


def test_a_rate_that_falls_in_the_last_part_alone(tmp_path):
    advance([config(8)], [tmp_path / "run"])
    advance([config(16, schedule="linear")], [tmp_path / "run"])
    lrs = dict(zip(*(Run(tmp_path / "run").metrics[name] for name in ("step", "lr")), strict=True))
    assert lrs[8] == 0.01
    assert lrs[16] == pytest.approx(0.01 / 16)
    assert Run(tmp_path / "run").config["training"]["schedule"] == "linear"


def interrupted_at(folder, steps, monkeypatch):
    """Begin to extend a run, and stop it at its first update, before it has a checkpoint under the new config."""

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            advance([config(steps, schedule="linear")], [folder])


@pytest.mark.parametrize("begun", [False, True], ids=["ended", "begun again"])
def test_the_end_of_an_earlier_part_is_repeated_as_it_was(tmp_path, monkeypatch, begun):
    """It was repeated with the learning rates of the longer run, and without the validation at the earlier end."""
    run, alone = tmp_path / "run", tmp_path / "alone"
    for folder in (run, alone):
        advance([config(10)], [folder])
    if begun:
        interrupted_at(run, 24, monkeypatch)
    damaged = run / "checkpoint/step-000000010/state.pt"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"step-000000010 is damaged, resuming from step-000000008$"):
        advance([config(24, schedule="linear")], [run])
    advance([config(24, schedule="linear")], [alone])
    rows = [[line.rsplit(",", 1)[0] for line in Run(folder).metric_lines()] for folder in (run, alone)]
    assert rows[0] == rows[1]
    assert equal(Run(run).weights(), Run(alone).weights())
    assert equal(Run(run).weights("best"), Run(alone).weights("best"))
    assert Run(run).status == Run(alone).status
    assert Run(run).config == Run(alone).config


def test_what_has_ended_is_not_trained_again(tmp_path, monkeypatch):
    advance([config(8)], [tmp_path / "run"])

    def none(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(room, "fit_settings", none)
    for steps in (8, 4):
        advance([config(steps)], [tmp_path / "run"])
    with pytest.raises(AssertionError, match="trained again"):
        advance([config(12)], [tmp_path / "run"])
    monkeypatch.undo()
    # The config was changed, nothing trained, and the status still says finished: it goes on all the same.
    assert Run(tmp_path / "run").config["training"]["steps"] == 12
    advance([config(12)], [tmp_path / "run"])
    assert Run(tmp_path / "run").status["step"] == 12


def test_side_by_side_as_one_by_one(tmp_path, monkeypatch):
    """On a GPU; here the same population runs on the CPU."""
    lrs = (0.01, 0.001, 1e30)
    system = {"name": "vprnn", "hidden_size": 4}
    for way in ("alone", "together"):
        monkeypatch.setattr(room, "uses_gpu", lambda _, way=way: way == "together")
        for steps in (4, 12):
            configs = [config(steps, lr, optimizer="sgd") | {"system": system} for lr in lrs]
            advance(configs, [tmp_path / way / f"{lr:g}" for lr in lrs])
    for lr in lrs:
        one, other = (read_score(tmp_path / way / f"{lr:g}", 0) for way in ("alone", "together"))
        assert one.updates == other.updates
        assert one.reason == other.reason
        assert one.valid_loss == pytest.approx(other.valid_loss, rel=SAME, nan_ok=True)
    assert "infinite or not a number" in one.reason
    assert math.isnan(one.valid_metric)


def test_what_a_population_cannot_do_is_done_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "uses_gpu", lambda _: True)
    both_ways = {"bidirectional": True}
    configs = [config(4, lr) | {"system": config(4)["system"] | both_ways} for lr in (0.01, 0.001)]
    folders = [tmp_path / "a", tmp_path / "b"]
    advance(configs, folders)
    assert [read_score(folder, 0).updates for folder in folders] == [4, 4]


def test_no_room_is_an_outcome(tmp_path, monkeypatch):
    def full(loop):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Loop, "update", full)
    advance([config(4)], [tmp_path / "run"])
    assert read_score(tmp_path / "run", 0).reason == "CUDA out of memory"


def test_the_last_row_says_how_far_a_run_is(tmp_path):
    assert last_step(tmp_path / "run") == 0
    advance([config(8)], [tmp_path / "run"])
    assert last_step(tmp_path / "run") == 8
    with open(tmp_path / "run" / "metrics.csv", "a") as file:
        file.write("12,0.1")  # a row that is being written
    assert last_step(tmp_path / "run") == 8
    advance([config(200, log_every=1)], [tmp_path / "run2"])  # longer than what is read of it
    assert last_step(tmp_path / "run2") == 200


def test_a_divergence_alone_is_no_error(tmp_path):
    bad = config(4, 1e30, optimizer="sgd")
    advance([bad], [tmp_path / "run"])
    with pytest.raises(NonFiniteLoss):
        train(bad, progress=False)
