"""Populations killed between the checkpoints of two runs resume from a common step and end with the same bits."""

from __future__ import annotations

import copy
import itertools
import shutil
import warnings

import pytest

from evenflow.lab.training import NonFiniteLoss, Run, checkpoint, resume, train_population
from evenflow.lab.training.common_start import POPULATION, common_start
from harden.same_runs import assert_same_folders

TASK = {"name": "adding", "length": 6}
TRAINING = {
    "steps": 7,
    "batch_size": 2,
    "lr": 0.01,
    "log_every": 1,
    "validate_every": 1,
    "validation_batches": 1,
    "checkpoint_every": 2,
    "device": "cpu",
}
NOISY = {"output_dropout": 0.3, "num_layers": 2, "dropout": 0.3}


class Killed(BaseException):
    """Ends a training as a kill does: no status is written."""


def configs(system=None, count=3, **training):
    table = {"task": TASK, "system": {"name": "rnn", "hidden_size": 5} | (system or {}), "training": TRAINING}
    made = [copy.deepcopy(table) for _ in range(count)]
    for seed, one in enumerate(made):
        one["training"] |= {name: v[seed] if isinstance(v, tuple) else v for name, v in training.items()}
        one["training"]["seed"] = seed
    return made


def places(top, count=3):
    return [top / f"seed-{i}" for i in range(count)]


def trained(given, folders, monkeypatch, kill=None, resume=False):
    """Train, and kill before the checkpoint of this number; whether it was reached."""
    saves, save = itertools.count(), checkpoint.save

    def counted(*arguments, **options):
        if next(saves) == kill:
            raise Killed
        return save(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save", counted)
        try:
            train_population(given, folders, resume=resume, progress=False)
        except Killed:
            return True
    return False


KINDS = {
    "dropout": configs(NOISY),
    "bases": configs({"name": "factorized"}, bases_lr=0.01, penalty="weight_decay(0.1)"),
    "probes": configs(NOISY, probe_every=2),
    "early stopping": configs(NOISY, patience=(1, 2, 3), lr=(0.3, 1e-9, 0.01), optimizer="sgd"),
    "one diverges": configs({"name": "irnn"}, lr=(0.01, 1e6, 0.02), optimizer="sgd"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_before_a_checkpoint_changes_no_bit(kind, tmp_path, monkeypatch):
    given = KINDS[kind]
    assert not trained(given, places(tmp_path / "whole"), monkeypatch)
    kills = range(0 if kind == "dropout" else 1, 100, 1 if kind == "dropout" else 4)
    for kill in kills:
        folders = places(tmp_path / str(kill))
        if not trained(given, folders, monkeypatch, kill):
            break
        trained(given, folders, monkeypatch, kill // 2 + 1, resume=True)  # and maybe once more
        trained(given, folders, monkeypatch, resume=True)
        assert_same_folders(tmp_path / "whole", tmp_path / str(kill))
    assert kill > 8


def test_runs_of_two_kinds_end_between_two_checkpoints(tmp_path, monkeypatch):
    *_, stopping, diverging = KINDS
    for kind, state in ((stopping, "finished"), (diverging, "failed")):
        trained(KINDS[kind], places(tmp_path / kind), monkeypatch)
        ends = [run.status["step"] for run in map(Run, places(tmp_path / kind)) if run.status["state"] == state]
        assert any(step % TRAINING["checkpoint_every"] for step in ends if step < TRAINING["steps"]), kind


def test_a_run_that_has_diverged_is_not_trained_again(tmp_path, monkeypatch):
    given, folders = KINDS["one diverges"], places(tmp_path)
    trained(given, folders, monkeypatch)
    before = (folders[1] / "metrics.csv").read_bytes()
    results = train_population(given, folders, resume=True, progress=False)
    assert isinstance(results[1], NonFiniteLoss)
    assert str(results[1]) == Run(folders[1]).status["message"]
    assert (folders[1] / "metrics.csv").read_bytes() == before


def test_runs_of_two_populations_are_not_mixed(tmp_path, monkeypatch):
    """Seeds added to a folder later resume beside those they began with, and finished ones stay as they are."""
    given, folders = configs(NOISY, count=4), places(tmp_path / "parts", 4)
    trained(given[:2], folders[:2], monkeypatch)
    assert trained(given[2:], folders[2:], monkeypatch, kill=5)
    trained(given[:2], places(tmp_path / "whole", 4)[:2], monkeypatch)
    trained(given[2:], places(tmp_path / "whole", 4)[2:], monkeypatch)
    train_population(given, folders, resume=True, progress=False)
    assert_same_folders(tmp_path / "whole", tmp_path / "parts")


def test_a_run_resumed_alone_stays_as_it_ended(tmp_path, monkeypatch):
    given, folders = configs(NOISY), places(tmp_path)
    assert trained(given, folders, monkeypatch, kill=7)
    alone = resume(folders[0], progress=False)
    kept = checkpoint.load(folders[0] / "checkpoint", checkpoint.find(folders[0] / "checkpoint"))
    assert POPULATION not in kept.state
    results = train_population(given, folders, resume=True, progress=False)
    assert results[0].loss == alone.loss
    assert [result.steps for result in results] == [7, 7, 7]


def test_runs_of_an_earlier_version_catch_up(tmp_path, monkeypatch):
    """Their checkpoints do not say that they are of one population."""
    given, folders = configs(), places(tmp_path)
    assert trained(given, folders, monkeypatch, kill=7)
    for folder in folders:
        place = folder / "checkpoint"
        for version in reversed(checkpoint.versions(place)):
            saved = checkpoint.load(place, version)
            del saved.state[POPULATION]
            (place / version).rename(tmp_path / "removed")
            checkpoint.save(place, saved)
            shutil.rmtree(tmp_path / "removed")
    assert [start.until for start in common_start(folders)] == [None] * 3
    results = train_population(given, folders, resume=True, progress=False)
    assert [result.steps for result in results] == [7, 7, 7]


def test_without_a_common_step_a_warning_says_so(tmp_path, monkeypatch):
    given, folders = configs(), places(tmp_path)
    assert trained(given, folders, monkeypatch, kill=13)
    ahead = folders[0] / "checkpoint"
    (ahead / checkpoint.versions(ahead)[1]).rename(tmp_path / "lost")
    with pytest.warns(UserWarning, match=r"have no checkpoint of the same step: those behind catch up alone"):
        train_population(given, folders, resume=True, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_population(given, folders, resume=True, progress=False)  # all have ended


def test_moved_together_the_runs_are_of_one_population(tmp_path, monkeypatch):
    given = configs(NOISY)
    assert trained(given, places(tmp_path / "here"), monkeypatch, kill=7)
    trained(given, places(tmp_path / "whole"), monkeypatch)
    (tmp_path / "here").rename(tmp_path / "there")
    train_population(given, places(tmp_path / "there"), resume=True, progress=False)
    assert_same_folders(tmp_path / "whole", tmp_path / "there")


def test_unfinished_writes_are_removed_at_the_next_start(tmp_path, monkeypatch):
    given, folders = configs(count=1), places(tmp_path, 1)
    assert trained(given, folders, monkeypatch, kill=2)
    (folders[0] / "checkpoint" / ".writing-step-000000007").mkdir()
    (folders[0] / "checkpoint" / ".writing-step-000000007" / "state.pt").write_bytes(b"half")
    (folders[0] / ".writing-status.toml").write_bytes(b"half")
    resume(folders[0], progress=False)
    assert not list(tmp_path.rglob(".writing-*"))
