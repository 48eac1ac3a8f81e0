"""A sweep finds the better points, spends its budget, and survives being stopped at any moment."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from killed_sweeps import RULES, TRAINING, run

from evenflow.lab.sweep import Axes, Rules
from evenflow.lab.sweep.sweep_record import FILE, SweepRecord
from evenflow.lab.training import NonFiniteLoss, Run
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.run_writer import folder_lock

PATIENCE = 600  # seconds, for a dozen processes on a busy machine


def read(folder):
    """sweep.json without what may differ between two sweeps of the same request."""
    table = json.loads((folder / FILE).read_text())
    for name in ("seconds", "began", "hardware"):  # which counts threads
        table.pop(name)
    for each in table["rounds"]:
        for scores in each["scores"].values():
            for score in scores:
                score.pop("seconds")
    return table


def without_seconds(folder):
    return {
        path.name: [line.rsplit(",", 1)[0] for line in Run(path).metric_lines()]
        for path in folder.iterdir()
        if path.is_dir()
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep left alone, the one that others are compared with."""
    folder = tmp_path_factory.mktemp("sweep") / "whole"
    said = []
    return run(folder, announce=said.append), said


def test_the_better_share_goes_on(whole):
    found, _ = whole
    rounds = json.loads((found.folder / FILE).read_text())["rounds"]
    assert [len(each["entrants"]) for each in rounds] == [10, 5, 2]
    for before, after in itertools.pairwise(rounds):
        losses = {name: np.mean([s["valid_metric"] for s in scores]) for name, scores in before["scores"].items()}
        assert set(after["entrants"]) == set(sorted(losses, key=losses.get)[: len(after["entrants"])])


def test_standings_are_complete_and_in_order(whole):
    found, _ = whole
    assert len(found.standings) == 10
    assert [s.state for s in found.standings] == ["finished"] * 2 + ["out"] * 8
    assert found.best is found.standings[0]
    finalists = found.standings[:2]
    assert finalists[0].valid_metric <= finalists[1].valid_metric  # a mean squared error
    assert all(len(s.folders) == 2 and s.spread >= 0 for s in finalists)
    assert found.standings[-1].reason == "not among the best 5 of round 1"
    assert found.finished
    assert found.metric_name == "mse"


def test_the_budget_is_kept_and_used(whole):
    found, _ = whole
    made = sum(Run(path).status["step"] for path in found.folder.iterdir() if path.is_dir())
    assert made == found.updates
    assert RULES.updates - 4 < made <= RULES.updates


def test_runs_went_on_and_were_not_begun_again(whole):
    found, _ = whole
    best = found.best
    steps = Run(best.folders[0]).metrics["step"]
    assert steps[-1] == best.updates == found.rounds[-1].until
    assert np.all(np.diff(steps) > 0)
    assert {4, 8} <= set(steps)
    lrs = Run(best.folders[1]).metrics["lr"]  # the second seed goes the same way: constant, then falling
    assert lrs[0] == best.point.lr
    assert lrs[-1] == pytest.approx(best.point.lr / best.updates)
    assert best.valid_metric == pytest.approx(np.mean([Run(path).status["best_metric"] for path in best.folders]))


def test_the_record_says_it_all(whole):
    found, said = whole
    table = json.loads((found.folder / FILE).read_text())
    assert table["state"] == "finished"
    assert table["updates"] == found.updates
    assert table["torch"] == str(torch.__version__)
    assert table["hardware"]
    assert table["seconds"] > 0
    assert table["request"]["training"]["validate_every"] == RULES.first
    first = table["points"][0]
    assert (first["rank"], first["name"], first["parameters"]) == (
        1,
        found.best.point.name,
        found.best.point.parameters,
    )
    assert first["runs"] == [path.name for path in found.best.folders]
    assert said[0] == "10 candidates, 5 models."
    assert said[1] == "The plan: 10 to 4 updates, 5 to 8 updates, 2 to 39 updates."
    assert said[2] == "Round 1: 10 points to 4 updates."


def test_called_again_it_reads_back(whole, monkeypatch):
    found, _ = whole
    before = read(found.folder)

    def none(loop):
        raise AssertionError("trained again")

    monkeypatch.setattr(Loop, "update", none)
    again = run(found.folder)
    assert repr(again.standings) == repr(found.standings)  # nan is not equal to itself
    assert read(found.folder) == before


@pytest.mark.parametrize("update", [3, 41, 90, 150])
def test_interrupted_it_goes_on_to_the_same_end(update, whole, tmp_path, monkeypatch):
    step, calls = Loop.update, []

    def interrupted(loop):
        calls.append(1)
        if len(calls) == update:
            raise KeyboardInterrupt
        step(loop)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "update", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut")
    stopped = json.loads((tmp_path / "cut" / FILE).read_text())
    assert (stopped["state"], stopped["updates"]) == ("stopped", update - 1)  # also those in the middle of a round
    assert run(tmp_path / "cut", seconds=1e-6).updates == update - 1
    run(tmp_path / "cut")
    found, _ = whole
    assert read(tmp_path / "cut") == read(found.folder)
    assert without_seconds(tmp_path / "cut") == without_seconds(found.folder)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_again_and_again_it_comes_to_the_same_end(whole, tmp_path):
    script = Path(__file__).parent / "killed_sweeps.py"
    command = [sys.executable, str(script), str(tmp_path / "killed")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 3
    found, _ = whole
    assert read(tmp_path / "killed") == read(found.folder)
    assert without_seconds(tmp_path / "killed") == without_seconds(found.folder)


def test_when_time_is_up_it_stops_and_the_same_call_goes_on(tmp_path, whole):
    part = run(tmp_path / "timed", seconds=1e-3)
    assert not part.finished
    assert json.loads((tmp_path / "timed" / FILE).read_text())["state"] == "stopped"
    assert {standing.state for standing in part.standings} == {"running"}
    seconds = 0.5
    while not (part := run(tmp_path / "timed", seconds=seconds)).finished:
        seconds *= 1.5
    found, _ = whole
    assert [s.point.name for s in part.standings] == [s.point.name for s in found.standings]
    assert [s.valid_metric for s in part.standings] == [s.valid_metric for s in found.standings]


def test_a_point_that_diverges_is_out_with_its_reason(tmp_path):
    axes = Axes(maps=["free"], cells=["elman"], activations=["relu"], hidden=[4], lrs=[0.01, 1e30], optimizers=["sgd"])
    found = run(tmp_path / "a", axes, Rules(60, 4, finalists=2))
    assert [s.state for s in found.standings] == ["finished", "diverged"]
    assert "infinite or not a number" in found.standings[1].reason
    assert found.best.point.lr == 0.01
    assert found.updates <= 60
    assert found.best.updates > 30  # what the other has left over


def test_all_may_diverge(tmp_path):
    axes = Axes(maps=["free"], cells=["elman"], activations=["relu"], hidden=[4], lrs=[1e30], optimizers=["sgd"])
    for _ in range(2):
        with pytest.raises(NonFiniteLoss, match="all 1 points diverged: try smaller lrs or a clip_norm"):
            run(tmp_path / "a", axes, Rules(60, 4))
    assert json.loads((tmp_path / "a" / FILE).read_text())["points"][0]["state"] == "diverged"


def test_a_single_round_and_a_single_point(tmp_path):
    axes = Axes(maps=["cayley"], cells=["elman"], activations=["relu"], hidden=[4], lrs=[0.01])
    found = run(tmp_path / "one", axes, Rules(4, 4))
    assert [s.state for s in found.standings] == ["finished"]
    assert found.updates == 4
    found = run(tmp_path / "two", axes, Rules(11, 4, finish="constant"))
    assert found.updates == 11
    assert set(Run(found.best.folders[0]).metrics["lr"]) == {0.01}


def test_a_rate_for_maps_is_that_of_the_points_with_a_map(tmp_path):
    axes = Axes(maps=["free", "cayley"], cells=["elman"], activations=["relu"], hidden=[4], lrs=[0.01])
    found = run(tmp_path / "a", axes, Rules(8, 4), training=TRAINING | {"map_lr": 0.001})
    lrs = {s.point.map: Run(s.folders[0]).config["training"].get("map_lr") for s in found.standings}
    assert lrs == {"free": None, "cayley": 0.001}


BAD = [
    ({"task": {"name": "addin"}}, "did you mean adding"),
    ({"task": {"length": 6}}, "task must be a table with a name"),
    ({"parameters": 10}, "no candidate is left of 5; the first, exponential elman relu with 4 units"),
    (
        {"rules": Rules(10, 4)},
        "updates must be at least 40 for a first round of 10 candidates at 4 updates each, got 10",
    ),
    ({"rules": Rules(41, 4, seeds=3)}, "updates must be at least"),
    ({"training": {"steps": 10}}, "steps must be left to the sweep, got 10"),
    ({"training": {"patience": 10}}, "patience must be left to the sweep, got 10"),
    ({"training": {"clip_nrm": 10}}, "clip_norm"),
    ({"training": {"device": "cuda:99"}}, "cuda:99"),
    ({"axes": Axes(lrs=[-1.0])}, "lr must be a number above 0, got -1.0"),
    ({"seconds": -1}, "seconds must be a number above 0, got -1"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_bad_input_and_nothing_written(change, words, tmp_path):
    with pytest.raises(ValueError) as caught:
        run(tmp_path / "none", **change)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_refused(tmp_path, whole):
    found, _ = whole
    before = read(found.folder)
    with pytest.raises(ValueError, match=r"holds another sweep, of keep 0\.5 and not 0\.25: choose another folder"):
        run(found.folder, rules=Rules(200, 4, 0.25, 2, 2))
    assert read(found.folder) == before
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something other than a sweep"):
        run(tmp_path)
    with pytest.raises(ValueError, match="is a file, and runs need a folder"):
        run(tmp_path / "notes.txt")
    (tmp_path / "notes.txt").rename(tmp_path / FILE)
    with pytest.raises(ValueError, match=r"sweep.json of .* cannot be read"):
        run(tmp_path)


def test_a_folder_is_one_processs_at_a_time(tmp_path):
    with (
        folder_lock(tmp_path / "a"),
        pytest.raises(ValueError, match=r"^folder '.*a' is being written by another process$"),
    ):
        run(tmp_path / "a")
    assert not list((tmp_path / "a").iterdir())


def test_processes_that_run_together_share_a_folder(tmp_path, monkeypatch):
    with folder_lock(tmp_path):
        monkeypatch.setenv("RANK", "1")
        with folder_lock(tmp_path):
            pass


def test_data_may_move_between_two_sittings(tmp_path, small_data):
    pytest.importorskip("sklearn")
    import shutil

    axes = Axes(maps=["cayley"], cells=["elman"], activations=["relu"], hidden=[4], lrs=[0.01])
    task = {"name": "mnist", "width": 28}
    first = Rules(12, 4)
    run(tmp_path / "a", axes, first, task=task | {"data": str(small_data)}, training={"batch_size": 4, "device": "cpu"})
    assert str(small_data) not in (tmp_path / "a" / FILE).read_text()
    table = json.loads((tmp_path / "a" / FILE).read_text())
    table["rounds"] = table["rounds"][:1]  # as if killed after the first round, with the last one lengthened
    (tmp_path / "a" / FILE).write_text(json.dumps(table))
    shutil.copytree(small_data, tmp_path / "moved")
    found = run(
        tmp_path / "a",
        axes,
        first,
        task=task | {"data": str(tmp_path / "moved")},
        training={"batch_size": 4, "device": "cpu"},
    )
    assert found.updates == 12
    assert 0 <= found.best.test_metric <= 1


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{}", b"3", b'{"request": 1}', b'{"request": {}, "rounds": [1]}']
)
def test_a_damaged_record_is_one_sentence(tmp_path, content):
    (tmp_path / "sweep.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"^sweep\.json of .* (cannot be read|is damaged): ") as error:
        SweepRecord(tmp_path, {})
    assert type(error.value) is ValueError
    assert "\n" not in str(error.value)


def test_a_large_record_is_refused(tmp_path):
    path = tmp_path / "sweep.json"
    path.touch()
    os.truncate(path, 1 << 40)  # a hole: no disk is used
    with pytest.raises(ValueError, match=r"^sweep\.json of .* cannot be read: .* it has 1,099,511,627,776 bytes"):
        SweepRecord(tmp_path, {})


SCORE = {
    "seed": 0,
    "updates": 2,
    "valid_metric": 0.3,
    "valid_loss": 0.3,
    "test_metric": None,
    "seconds": 1,
    "reason": "",
}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("updates", "relu"),
        ("seed", True),
        ("valid_loss", 10**400),
        ("valid_metric", []),
        ("reason", 3),
        ("seconds", "1"),
    ],
)
def test_a_score_of_another_type_is_refused(tmp_path, place, value):
    """The leaderboard ended in a trace."""
    record = {"points": 1, "until": 2, "last": False, "entrants": ["a"], "scores": {"a": [SCORE]}}
    table = {"request": {}, "rounds": [record], "seconds": 1.0, "began": ""}
    (tmp_path / "sweep.json").write_text(json.dumps(table))
    assert SweepRecord(tmp_path, {}).rounds[0].scores["a"][0].updates == 2
    damaged = [record | {"scores": {"a": [SCORE | {place: value}]}}, record | {"scores": {"a": []}}]
    damaged += [record | {"until": "2"}, record | {"entrants": [1]}, record | {"more": 1}]
    for each in damaged:
        (tmp_path / "sweep.json").write_text(json.dumps(table | {"rounds": [each]}))
        with pytest.raises(ValueError, match=r"^sweep\.json of .* is damaged: it has not the form of a sweep$"):
            SweepRecord(tmp_path, {})


def test_a_round_of_an_unknown_point_is_refused(tmp_path, monkeypatch):
    def stop(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    record = json.loads((tmp_path / "sweep.json").read_text())
    record["rounds"][0]["entrants"][0] = "no such point"
    (tmp_path / "sweep.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"^sweep\.json of .* is damaged: the sweep has no point 'no such point'$"):
        run(tmp_path)
