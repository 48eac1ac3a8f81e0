"""A search with Optuna spends its budget, prunes, repeats itself, and survives being stopped at any moment."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("optuna")
from killed_searches import AXES, RULES, TRAINING, run

from evenflow.lab.sweep import Axes, Range, SearchRecord, SearchRules, SearchSpace
from evenflow.lab.sweep.study_record import STUDY_FILE, TrialRow
from evenflow.lab.sweep.trial_study import TrialStudy
from evenflow.lab.training import Run
from evenflow.lab.training.loop import Loop

PATIENCE = 600  # seconds, for some processes on a busy machine


def trials(folder: Path) -> list[dict]:
    table = json.loads((folder / STUDY_FILE).read_text())
    assert table["state"] == "finished"
    return [{name: value for name, value in row.items() if name != "seconds"} for row in table["trials"]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search left alone, the one that others are compared with."""
    said: list[str] = []
    folder = tmp_path_factory.mktemp("search") / "whole"
    return run(folder, announce=said.append), folder, said


def test_the_budget_is_kept_and_used(whole):
    record, folder, _ = whole
    made = sum(Run(path).status["step"] for path in folder.glob("trial-*"))
    assert made == sum(row.updates for row in record.trials)
    assert RULES.updates - RULES.longest < made <= RULES.updates
    assert record.state == "finished"


def test_trials_are_drawn_from_the_space(whole):
    record, folder, _ = whole
    for row in record.trials:
        assert row.drawn["map"] in AXES.maps
        assert 1e-4 <= row.drawn["lr"] <= 1e-1
        assert ("margin" in row.drawn) is (row.drawn["map"] == "svd")
        config = Run(folder / f"trial-{row.number:04d}").config
        assert config["training"]["lr"] == row.drawn["lr"]
        assert config["system"].get("margin") == row.drawn.get("margin")
        assert row.hidden_size == 4
    assert len({row.drawn["lr"] for row in record.trials}) == len(record.trials)


def test_a_trial_that_falls_behind_is_pruned(whole):
    record, folder, said = whole
    states = {row.state for row in record.trials}
    assert states == {"finished", "pruned"}
    for row in record.trials:
        assert row.updates == (16 if row.state == "finished" else row.updates)
        assert row.updates in (4, 8, 16), "pruned after the first updates, or twice as many"
        lrs = Run(folder / f"trial-{row.number:04d}").metrics["lr"]
        assert lrs[-1] == pytest.approx(row.drawn["lr"] * (1 - (row.updates - 1) / 16)), "one schedule for all"
    best = [row for row in record.ranked() if row.state == "finished"]
    assert [row.valid_metric for row in best] == sorted(row.valid_metric for row in best)
    assert record.ranked()[: len(best)] == best
    assert len(said) == len(record.trials)


def test_the_importance_is_that_of_optuna(whole):
    record, folder, _ = whole
    assert sum(record.importance.values()) == pytest.approx(1)
    assert set(record.importance) == {"map", "lr", "margin"}
    assert SearchRecord.read(folder).importance == record.importance


def test_called_again_it_reads_back(whole, monkeypatch):
    record, folder, _ = whole

    def none(loop):
        raise AssertionError("trained again")

    monkeypatch.setattr(Loop, "update", none)
    before = trials(folder)
    assert repr(run(folder).ranked()) == repr(record.ranked())  # nan is not equal to itself
    assert trials(folder) == before


@pytest.mark.parametrize("update", [3, 47, 100])
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
    assert json.loads((tmp_path / "cut" / STUDY_FILE).read_text())["state"] == "running"
    run(tmp_path / "cut")
    assert trials(tmp_path / "cut") == trials(whole[1])


def script(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(__file__).parent / "killed_searches.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_again_and_again_it_comes_to_the_same_end(whole, tmp_path):
    done = script(tmp_path / "killed")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 2
    assert trials(tmp_path / "killed") == trials(whole[1])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_several_processes_share_a_study_and_its_budget(tmp_path):
    done = script(tmp_path / "shared", "together")
    assert done.returncode == 0, done.stderr
    rows = trials(tmp_path / "shared")
    assert [row["number"] for row in rows] == list(range(len(rows)))
    made = [Run(path).status["step"] for path in sorted((tmp_path / "shared").glob("trial-*"))]
    assert made == [row["updates"] for row in rows]
    assert RULES.updates - 2 * RULES.longest < sum(made) <= RULES.updates


def study(folder: Path, seed: int = 0) -> TrialStudy:
    folder.mkdir(exist_ok=True)
    return TrialStudy(folder, None, False, {"name": "a"}, {"min_resource": 4, "reduction_factor": 2}, seed)


def test_a_trial_belongs_to_the_process_that_holds_its_lock(tmp_path):
    first, second = study(tmp_path / "a"), study(tmp_path / "a")
    with first.claimed(100, 10) as one, second.claimed(100, 10) as other:
        assert (one.number, other.number) == (0, 1)
        for trial in (one, other):
            trial.suggest_float("x", 0, 1)
            trial.set_user_attr("ready", True)
        drawn = one.params
        with first.claimed(29, 10) as none:
            assert none is None, "two trials under way leave nine updates"
    # Both processes are gone, and neither told the study how its trial ended.
    with second.claimed(100, 10) as again:
        assert (again.number, again.params) == (0, drawn)


def test_without_locks_no_trial_is_taken_from_a_process_that_may_live(tmp_path, monkeypatch):
    monkeypatch.setattr("evenflow.lab.sweep.trial_study.lock_folder", lambda folder: None)
    first, second = study(tmp_path / "a"), study(tmp_path / "a")
    with first.claimed(100, 10) as one:
        one.set_user_attr("ready", True)
        with second.claimed(100, 10) as other:
            assert (one.number, other.number) == (0, 1)
    with second.claimed(29, 10) as none:
        assert none is None, "both count as under way"


def test_a_trial_whose_process_died_before_it_was_drawn_leaves_no_trace(tmp_path):
    untouched, disturbed = study(tmp_path / "a"), study(tmp_path / "b")
    with untouched.claimed(100, 10) as trial:
        expected = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
    with disturbed.claimed(100, 10) as trial:
        trial.suggest_float("x", 0, 1)
    with disturbed.claimed(100, 10) as trial:
        assert trial.number == 1
        assert (trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)) == expected


def test_a_storage_of_ones_own_and_another_machine(tmp_path):
    url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    few = SearchRules(updates=20, each=8, first=4, keep=0.5)
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
    record = run(tmp_path / "one" / "study", rules=few, study=url)
    assert not (tmp_path / "one" / "study" / "study.db").exists()
    other = run(tmp_path / "two" / "study", rules=few, study=url)  # the budget is spent
    assert repr(other.trials) == repr(record.trials)
    assert not list((tmp_path / "two" / "study").glob("trial-*"))
    with pytest.raises(ValueError, match=r"^study 'nonsense' cannot be opened: "):
        run(tmp_path / "c", study="nonsense")


def test_models_over_the_limit_are_left_out_and_cost_nothing(tmp_path):
    space = SearchSpace(
        Axes(maps=["exponential"], cells=["elman"], activations=["relu"], lrs=[0.01]),
        {"hidden": Range.read("hidden", "4:40")},
    )
    record = run(tmp_path / "a", space, SearchRules(updates=24, each=4, first=4, keep=0.5), parameters=300)
    left_out = [row for row in record.trials if row.state == "left out"]
    assert left_out
    assert all(row.parameters > 300 and row.updates == 0 and "the limit is 300" in row.reason for row in left_out)
    trained = [row for row in record.trials if row.state != "left out"]
    assert len(trained) == 6
    assert all(row.parameters <= 300 and row.hidden_size % 2 == 0 for row in trained)
    odd = SearchSpace(
        AXES, {"num_layers": Range.read("num_layers", "1:9"), "proj_size": Range.read("proj_size", "1:9")}
    )
    with pytest.raises(ValueError, match=r"^no candidate can be made at the lower ends of the ranges; the first, svd "):
        run(tmp_path / "b", odd)
    assert not (tmp_path / "b").exists()


def test_a_search_without_any_model_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(SearchSpace, "check", lambda space, task, parameters: None)
    with pytest.raises(ValueError, match=r"^50 trials in a row have no model to train; the last: .*limit is 3$"):
        run(tmp_path / "a", parameters=3)


def test_a_trial_that_diverges_is_out_with_its_reason(tmp_path):
    axes = Axes(maps=["free"], cells=["elman"], activations=["relu"], hidden=[4], optimizers=["sgd"], lrs=[1e30, 0.01])
    record = run(tmp_path / "a", SearchSpace(axes), SearchRules(updates=60, each=8, first=4, keep=0.5))
    diverged = [row for row in record.trials if row.state == "diverged"]
    assert diverged
    assert all("infinite or not a number" in row.reason and row.drawn == {"lr": 1e30} for row in diverged)
    assert record.ranked()[-1].state == "diverged"
    assert record.ranked()[0].drawn == {"lr": 0.01}


def test_settings_are_drawn_in_their_types(tmp_path):
    axes = Axes(maps=["exponential"], cells=["elman"], activations=["relu"], hidden=[4], lrs=[0.01])
    ranges = {"batch_size": "2:4", "clip_norm": "1:3", "dropout": "0.1:0.4", "num_layers": "2:3"}
    space = SearchSpace(axes, {name: Range.read(name, text) for name, text in ranges.items()})
    training = {name: value for name, value in TRAINING.items() if name != "batch_size"}
    record = run(tmp_path / "a", space, SearchRules(updates=4, each=2, first=2, keep=0.5), training=training)
    for row in record.trials:
        config = Run(tmp_path / "a" / f"trial-{row.number:04d}").config
        assert config["training"]["batch_size"] in (2, 3, 4)
        assert isinstance(config["training"]["clip_norm"], float)
        assert config["system"]["num_layers"] in (2, 3)
        assert 0.1 <= config["system"]["dropout"] <= 0.4


def test_a_higher_metric_is_better_where_the_task_says_so():
    def row(number: int, metric: float, state: str = "finished", updates: int = 8) -> TrialRow:
        return TrialRow(number, state, "", {}, 4, 10, updates, metric)

    rows = [row(0, 0.1), row(1, 0.9), row(2, math.nan, "diverged"), row(3, 0.99, "pruned", 4), row(4, 0.5, "pruned")]

    def order(higher: bool, given: Sequence[TrialRow] = rows) -> list[int]:
        return [each.number for each in SearchRecord({}, "finished", "accuracy", higher, given).ranked()]

    assert order(True) == [1, 0, 4, 3, 2]
    assert order(False) == [0, 1, 4, 3, 2]


def ranges(**texts: str) -> SearchSpace:
    return SearchSpace(AXES, {name: Range.read(name, text) for name, text in texts.items()})


BAD_SPACES = [
    (lambda: Range.read("lr", "fast"), "range lr must be two numbers with a colon between them, got 'fast'"),
    (lambda: Range.read("lr", "1e-1:1e-4"), "range lr must rise, from a lower number to a higher one, got '1e-1:1e-4'"),
    (lambda: Range.read("lr", "0:1e999"), "range lr must be two numbers with a colon between them, got '0:1e999'"),
    (lambda: ranges(hidden="1.5:4"), "range hidden must be whole numbers of at least 2, got 1.5:4"),
    (lambda: ranges(hidden_size="4:8"), "range hidden_size has another name here: give hidden"),
    (
        lambda: SearchSpace(Axes(maps=["svd(margin=0.1)"]), {"margin": Range(0.1, 0.2, False)}),
        "got it in map svd(margin",
    ),
    (
        lambda: SearchSpace(Axes(maps=["cayley"]), {"margin": Range(0.1, 0.2, False)}),
        "goes with the maps svd, factorized",
    ),
    (lambda: SearchRules(100, each=200), "updates must be at least the 200 of one trial, got 100"),
    (lambda: SearchRules(100, first=0), "first must be a whole number of at least 1, got 0"),
    (lambda: SearchRules(100, first=4, keep=0.9), "keep must be a number above 0 and at most 0.5, got 0.9"),
]


@pytest.mark.parametrize(("make", "words"), BAD_SPACES, ids=[words[:40] for _, words in BAD_SPACES])
def test_a_wrong_space_is_one_sentence(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


BAD = [
    ({"task": {"name": "addin"}}, "did you mean adding"),
    ({"task": {"length": 6}}, "task must be a table with a name"),
    ({"training": {"steps": 10}}, "steps must be left to the search, got 10"),
    ({"training": {"device": "cuda:99"}}, "cuda:99"),
    ({"space": ranges(seed="1:3")}, "range seed must not be drawn from"),
    ({"space": ranges(momentum="0.1:0.5")}, "momentum goes with sgd and rmsprop"),
    ({"space": ranges(lr="-1:1")}, "lr must be a number above 0, got -1"),
    ({"space": ranges(batch_size="1:3")}, "range batch_size must not be set besides, got 4 too"),
    ({"seconds": -1}, "seconds must be a number above 0, got -1"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[words[:40] for _, words in BAD])
def test_bad_input_and_nothing_written(change, words, tmp_path):
    with pytest.raises(ValueError) as caught:
        run(tmp_path / "none", **change)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_refused(tmp_path, whole):
    folder = whole[1]
    with pytest.raises(ValueError, match=r"holds another search, of each 16 and not 8: choose another folder$"):
        run(folder, rules=SearchRules(140, 8, 4, 0.5))
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something other than a search"):
        run(tmp_path)
    with pytest.raises(ValueError, match="is a file, and runs need a folder"):
        run(tmp_path / "notes.txt")


def test_without_optuna_it_says_how_to_get_it(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "optuna" else found(name, *rest)
    )
    with pytest.raises(ValueError, match=r"^sampler optuna needs .*: pip install 'evenflow\[optuna\]'$"):
        run(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b"3", b'{"trials": [1]}'])
def test_a_damaged_record_is_one_sentence(tmp_path, content):
    (tmp_path / STUDY_FILE).write_bytes(content)
    with pytest.raises(ValueError, match=r"^study\.json of .* cannot be read or is damaged$"):
        SearchRecord.read(tmp_path)
