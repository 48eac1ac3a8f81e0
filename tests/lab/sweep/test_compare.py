"""A comparison: the best rate of each system, divergence as an outcome, and interruptions survived."""

from __future__ import annotations

import math

import pytest

from evenflow.lab.sweep.compare import compare
from evenflow.lab.training import Run, resume

TASK = {"name": "adding", "length": 10}
TRAINING = {"steps": 6, "batch_size": 4, "validation_batches": 1, "optimizer": "sgd", "checkpoint_every": 2}
RNN = {"name": "rnn", "hidden_size": 4}
IRNN = {"name": "irnn", "hidden_size": 4}


def test_goes_on_where_the_data_has_moved(tmp_path, small_data):
    (tmp_path / "old").symlink_to(small_data)

    def run(place):
        task = {"name": "har-rebuilt", "data": str(tmp_path / place)}
        return compare(task, [RNN], TRAINING, [1e-2], tmp_path / "all", progress=False)

    first = run("old")
    (tmp_path / "old").rename(tmp_path / "new")
    assert [each.valid_loss for each in run("new")] == [each.valid_loss for each in first]


def test_keeps_the_best_rate_of_each_system(tmp_path):
    said = []
    best = compare(TASK, [RNN, IRNN], TRAINING, [1e-2, 1e-5], tmp_path, announce=said.append)
    assert [attempt.system for attempt in best] == ["rnn", "irnn"]
    assert len(said) == 4
    for attempt in best:
        losses = {lr: Run(tmp_path / f"{attempt.system}-{lr:g}").metrics["valid_loss"][-1] for lr in (1e-2, 1e-5)}
        assert attempt.valid_loss == min(losses.values()) == losses[attempt.lr]
        assert attempt.parameters == sum(w.numel() for w in Run(attempt.folder).weights().values())


def test_a_diverged_attempt_loses_and_stays_lost(tmp_path):
    for _ in range(2):
        (best,) = compare(TASK, [IRNN], TRAINING, [1e30, 1e-3], tmp_path)
        assert best.lr == 1e-3
        assert not best.diverged
    (alone,) = compare(TASK, [IRNN], TRAINING, [1e30], tmp_path)
    assert alone.diverged
    assert not alone.solved


def test_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    whole = compare(TASK, [RNN], TRAINING, [1e-2], tmp_path / "whole")[0]
    from evenflow.lab.training import loop

    update, calls = loop.Loop.update, []

    def interrupted(self):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        update(self)

    monkeypatch.setattr(loop.Loop, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(TASK, [RNN], TRAINING, [1e-2], tmp_path / "cut")
    monkeypatch.setattr(loop.Loop, "update", update)
    cut = compare(TASK, [RNN], TRAINING, [1e-2], tmp_path / "cut")[0]
    assert cut.valid_loss == whole.valid_loss
    assert resume(cut.folder).valid_loss == whole.valid_loss


@pytest.mark.parametrize(
    ("systems", "lrs", "words"),
    [
        ([], [1e-2], "at least one system"),
        ([RNN], [], "at least one learning rate"),
        ([RNN, RNN], [1e-2], "must differ"),
        ([RNN, {"name": "nonsense", "hidden_size": 4}], [1e-2], "nonsense"),
    ],
)
def test_bad_input_before_anything_is_trained(systems, lrs, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        compare(TASK, systems, TRAINING, lrs, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_an_unfit_system_costs_no_run(tmp_path):
    systems = [{"name": name, "hidden_size": 4} for name in ("rnn", "lstm")]
    with pytest.raises(ValueError, match="needs a cell whose state is one vector, got LSTM"):
        compare(TASK, systems, TRAINING | {"optimizer": "temporal-simplex"}, [0.1], tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_hessian_free_finds_its_own_rate(tmp_path):
    systems = [{"name": "rnn", "hidden_size": 4}]
    found = compare(TASK, systems, TRAINING | {"optimizer": "hessian-free"}, [1e-1, 1e-2], tmp_path, progress=False)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["rnn"]
    assert math.isnan(found[0].lr)


@pytest.mark.parametrize(
    ("task", "system", "training", "words"),
    [
        ({"length": 12}, {}, {}, "task must stay as the run '.*rnn-0.01' began, .*10.*, got .*12.*: choose another"),
        ({}, {"hidden_size": 5}, {}, "system must stay as .*4.*, got .*5.*: choose another folder"),
        ({}, {"bias": False}, {}, "system must stay as"),
        ({}, {}, {"steps": 8}, "steps must stay as .* began, 6, got 8: choose another folder"),
        ({}, {}, {"clip_norm": 1.0}, "clip_norm must stay as .* began, its default, got 1.0"),
    ],
)
def test_a_folder_with_other_settings_is_refused(tmp_path, task, system, training, words):
    """What was trained before must not pass for what is asked for now."""
    before = compare(TASK, [RNN], TRAINING, [1e-2], tmp_path)
    with pytest.raises(ValueError, match=words):
        compare(TASK | task, [IRNN, RNN | system], TRAINING | training, [1e-2], tmp_path)
    assert not (tmp_path / "irnn-0.01").exists()
    assert compare(TASK, [RNN], TRAINING | {"device": "cpu"}, [1e-2], tmp_path) == before


def test_an_attempt_that_failed_for_want_of_room_goes_on(tmp_path, monkeypatch):
    whole = compare(TASK, [RNN], TRAINING, [1e-2], tmp_path / "whole")[0]
    from evenflow.lab.training import loop

    def full(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop.Loop, "update", full)
    with pytest.raises(OSError, match="No space left"):
        compare(TASK, [RNN], TRAINING, [1e-2], tmp_path / "full")
    assert Run(tmp_path / "full" / "rnn-0.01").status["state"] == "failed"
    monkeypatch.undo()
    again = compare(TASK, [RNN], TRAINING, [1e-2], tmp_path / "full")[0]
    assert not again.diverged
    assert again.valid_loss == whole.valid_loss


def test_a_system_that_has_solved_the_task_tries_no_further_rate(tmp_path):
    """Recalling the first of one number is solved at the first rate; nothing solves adding in six steps."""
    easy = {"name": "recall-first", "length": 1, "symbols": 2, "embedding": 4}
    training = TRAINING | {"steps": 60, "optimizer": "adam", "batch_size": 16}
    systems = [{"name": "rnn", "hidden_size": 8}]
    told = []
    best = compare(easy, systems, training, [0.1, 0.01], tmp_path / "a", until_solved=True, announce=told.append)
    assert (len(told), best[0].lr, best[0].solved) == (1, 0.1, True)
    told.clear()
    compare({"name": "adding"}, systems, TRAINING, [0.1, 0.01], tmp_path / "b", until_solved=True, announce=told.append)
    assert len(told) == 2
