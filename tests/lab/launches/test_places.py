"""The places without a start of Ray: the order of launches here, and bad requests in one sentence."""

from __future__ import annotations

import importlib.util
import os
import signal

import pytest

from evenflow.lab import cli
from evenflow.lab.launches import Here, Launch, OnRay
from evenflow.lab.launches.ray_tasks import launch_token
from evenflow.lab.sweep.compare import compare
from evenflow.lab.training import Run, checkpoint, extend_run
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.stopping import TimeUp, time_limit


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(a) for a in arguments])
    return left.value.code


def launch(name, tmp_path, seen):
    return Launch(lambda folders, progress: seen.append(folders[0].name), (tmp_path / name,), name, 1)


def test_what_follows_from_a_launch_comes_next(tmp_path):
    seen: list[str] = []

    def ended(each):
        return [launch(each.title + letter, tmp_path, seen) for letter in "xy"] if each.title in "ab" else []

    Here().run([launch(name, tmp_path, seen) for name in "ab"], ended=ended)
    assert seen == ["a", "ax", "ay", "b", "bx", "by"]


def test_no_launch_starts_after_the_time_limit(tmp_path):
    seen: list[str] = []
    with time_limit(1e-9), pytest.raises(TimeUp):
        Here().run([launch("a", tmp_path, seen)])
    assert seen == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus_each": -1}, "gpus_each must be a number of at least 0, got -1"),
        ({"gpus_each": 1.5}, "gpus_each must be a whole number or below 1, got 1.5"),
        ({"cores_each": 0}, "cores_each must be a number above 0, got 0"),
        ({"memory_each": 0}, "memory_each must be a number above 0, got 0"),
        ({"address": "ray://host:10001"}, "address must be auto or the host:port of a cluster that this machine"),
        ({"storage": "nowhere://runs"}, "storage 'nowhere://runs' cannot be used: Protocol not known: nowhere"),
    ],
)
def test_a_bad_argument_is_one_sentence(options, words):
    pytest.importorskip("ray")
    with pytest.raises(ValueError) as caught:
        OnRay(**options)
    assert words in str(caught.value)


def test_devices_on_ray():
    pytest.importorskip("ray")
    with pytest.raises(
        ValueError, match=r"^device must be auto, cpu or cuda on Ray, which chooses the GPU, got 'cuda:1'"
    ):
        OnRay().check_device("cuda:1")
    with pytest.raises(ValueError, match=r"^device cuda needs gpus_each above 0 on Ray, got 0$"):
        OnRay().check_device("cuda")
    OnRay(gpus_each=0.5).check_device("cuda")  # of the workers; this machine needs none
    assert OnRay(gpus_each=0.5).populations("auto")
    assert not OnRay(gpus_each=0.5).populations("cpu")
    assert not OnRay().populations("auto")


SWEEP = ["sweep", "adding", "--updates", "100", "--first", "4", "--hidden", "4", "--cells", "elman"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*SWEEP, "--on", "dask"], "--on must be one of here, ray, got 'dask'"),
        ([*SWEEP, "--address", "auto"], "--address goes with --on ray, got auto without it"),
        ([*SWEEP, "--gpus-each", "0.5"], "--gpus-each goes with --on ray, got 0.5 without it"),
        ([*SWEEP, "--on", "ray", "--device", "cuda"], "device cuda needs gpus_each above 0 on Ray, got 0"),
        (["train", "adding", "rnn", "--on", "ray"], "--on ray needs --seeds above 1, got 1"),
        (["train", "adding", "rnn", "--side-by-side", "2"], "--side-by-side needs --seeds above 1, got 1"),
    ],
)
def test_a_slip_is_one_line_and_exit_code_two(arguments, words, capsys, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing half-written"


def test_without_ray_one_sentence_names_the_command(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else found(name, *rest))
    assert run(*SWEEP, "--on", "ray") == 2
    assert capsys.readouterr().err == 'evenflow: runs on Ray need the package ray: pip install "evenflow[ray]"\n'
    assert list(tmp_path.iterdir()) == []


def test_ray_does_not_report_its_use(monkeypatch):
    """The variable is set while Ray starts, and only then."""
    ray = pytest.importorskip("ray")
    seen = []

    def refused(**options):
        seen.append(os.environ["RAY_USAGE_STATS_ENABLED"])
        raise ConnectionError

    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    monkeypatch.setattr(ray, "init", refused)
    place = OnRay("127.0.0.1:1")
    with pytest.raises(ValueError, match=r"^no cluster of Ray answers at address '127.0.0.1:1': see `ray start`$"):
        place.run([Launch(lambda folders, progress: None, (), "a", 1)])
    assert seen == ["0"]
    assert "RAY_USAGE_STATS_ENABLED" not in os.environ


def test_seeds_side_by_side_are_parted_and_resume_in_the_same_parts(tmp_path, monkeypatch, capsys):
    options = ["--hidden", "4", "--steps", "6", "--batch-size", "4", "-t", "length=5", "--device", "cpu", "-q"]
    options += ["--checkpoint-every", "2", "--seeds", "3", "--side-by-side", "2"]
    assert run("train", "adding", "rnn", "--folder", tmp_path / "whole", *options) == 0
    whole = capsys.readouterr().out
    record = Loop.record

    def interrupted(loop, found=None):
        if loop.step == 3 and loop.settings.seed == 2:  # in the second part
            raise KeyboardInterrupt
        record(loop, found)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "record", interrupted)
        assert run("train", "adding", "rnn", "--folder", tmp_path / "parts", *options) == 1
    assert Run(tmp_path / "parts" / "seed-1").status["state"] == "finished"
    capsys.readouterr()
    assert run("resume", tmp_path / "parts", "-q") == 0
    assert capsys.readouterr().out.split("The runs")[0] == whole.split("The runs")[0]
    saved = [checkpoint.load(tmp_path / "parts" / f"seed-{seed}" / "checkpoint", "step-000000006") for seed in range(3)]
    assert [each.state["population"] for each in saved] == [[".", "../seed-1"], ["../seed-0", "."], ["."]]


def test_seeds_of_epochs_train_side_by_side_in_a_comparison(tmp_path, monkeypatch):
    """On a GPU; here the same population runs on the CPU."""
    task = {"name": "digits"}
    training = {"epochs": 1, "batch_size": 500, "device": "cpu"}
    systems = [{"name": "rnn", "hidden_size": 4}]
    alone = compare(task, systems, training, [0.01], tmp_path / "alone", seeds=2, progress=False)
    monkeypatch.setattr(Here, "populations", lambda *_: True)
    monkeypatch.setattr(extend_run, "uses_gpu", lambda _: True)
    together = compare(task, systems, training, [0.01], tmp_path / "together", seeds=2, progress=False)
    assert together[0].valid_loss == pytest.approx(alone[0].valid_loss, rel=1e-4)
    again = compare(task, systems, training, [0.01], tmp_path / "together", seeds=2, progress=False)
    assert again[0].valid_loss == together[0].valid_loss


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system")
def test_the_token_of_a_killed_command_is_removed_and_that_of_another_stays(tmp_path):
    launches = [launch("a", tmp_path, [])]
    if (child := os.fork()) == 0:
        with launch_token(launches):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 1
    with launch_token(launches) as first:
        assert list(tmp_path.iterdir()) == [first]
        with launch_token(launches) as second:
            assert set(tmp_path.iterdir()) == {first, second}
        assert list(tmp_path.iterdir()) == [first]
    assert list(tmp_path.iterdir()) == []
