"""Running a recipe: all rows, resumed in the middle, diverged, without data; the record and the table."""

from __future__ import annotations

import json

import pytest
from made_recipes import made

from evenflow.lab import cli
from evenflow.lab.launches import Here
from evenflow.lab.recipes import attempts, recipe_populations, reproduce
from evenflow.lab.recipes.recipe_table import show_reproduction
from evenflow.lab.training import Run
from evenflow.lab.training.loop import Loop


def test_all_rows_and_seeds_are_run_judged_and_recorded(tmp_path, capsys):
    told: list[str] = []
    done = reproduce(made(), folder=tmp_path, progress=False, announce=told.append)
    assert sorted(p.parent.name for p in tmp_path.glob("*/*/config.toml")) == ["seed-1", "seed-1", "seed-2", "seed-2"]
    assert [line.split(":")[0] for line in told if " of " in line] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
    error = done.cells["plain", "error"]
    assert len(error.values) == 2
    assert error.spread is not None
    assert error.verdict.startswith("too small to compare; ")
    assert done.cells["plain", "parameters"].verdict == "too small to compare"  # 97 numbers, and 105 published
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["recipe"] == "made/table-1"
    assert record["hardware"]
    assert record["rows"][0]["seeds"] == [1, 2]
    assert record["rows"][0]["columns"]["error"]["mean"] == error.mean
    assert record["rows"][0]["settings"]["training"]["steps"] == 4
    show_reproduction(done)
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("plain", "orthogonal", "error", "0.2", "0.1 ± 0.01", "Quick: 4 updates."))


def test_a_number_that_json_cannot_hold_is_null_in_the_record(tmp_path):
    column = {"name": "updates", "measure": "updates_to_solve"}
    recipe = made(columns=[column], seeds=[1], ordering=[], rows=[{"label": "plain", "system": {"name": "rnn"}}])
    done = reproduce(recipe, folder=tmp_path, progress=False)
    kept = json.loads(done.record.read_text())["rows"][0]["columns"]["updates"]
    assert (kept["values"], kept["mean"], kept["measured"]) == ([None], None, "never")


def test_finished_runs_are_read_back(tmp_path, monkeypatch):
    first = reproduce(made(), folder=tmp_path, progress=False)

    def never(*_, **__):
        raise AssertionError("a finished run must not be trained again")

    monkeypatch.setattr(attempts, "train_or_resume", never)
    monkeypatch.setattr(recipe_populations, "train_population", never)
    again = reproduce(made(), folder=tmp_path, progress=False)
    assert [c.values for c in again.cells.values()] == [c.values for c in first.cells.values()]


@pytest.mark.parametrize(("seeds", "draws"), [([1], 10), ([1, 2], 20)], ids=["one seed", "side by side"])
def test_a_table_stopped_in_the_middle_goes_on_where_it_was(tmp_path, monkeypatch, seeds, draws):
    monkeypatch.setattr(Here, "populations", lambda *_: True)
    whole = reproduce(made(seeds=seeds), "full", folder=tmp_path / "whole", progress=False)
    draw, calls = Loop.next_batch, []

    def stop(self):
        calls.append(1)
        if len(calls) == draws:  # in the fourth update of the second row
            raise KeyboardInterrupt
        return draw(self)

    monkeypatch.setattr(Loop, "next_batch", stop)
    with pytest.raises(KeyboardInterrupt):
        reproduce(made(seeds=seeds), "full", folder=tmp_path / "parts", progress=False)
    assert Run(tmp_path / "parts/orthogonal/seed-1").status["state"] == "interrupted"
    assert not (tmp_path / "parts/record.json").exists()
    monkeypatch.setattr(Loop, "next_batch", draw)
    parts = reproduce(made(seeds=seeds), "full", folder=tmp_path / "parts", progress=False)
    assert [c.values for c in parts.cells.values()] == [c.values for c in whole.cells.values()]


def test_seeds_from_another_on_are_added_to_the_record(tmp_path):
    reproduce(made(seeds=[1]), "full", folder=str(tmp_path), rows=["plain"], progress=False)
    done = reproduce(made(seeds=[1]), "full", folder=tmp_path, rows=["plain"], seeds=2, seed=2, progress=False)
    assert [outcome.job.seed for outcome in done.outcomes] == [2, 3]
    record = json.loads((tmp_path / "record.json").read_text())
    assert [run["seed"] for run in record["runs"]] == [1, 2, 3]
    (one,) = reproduce(made(seeds=[1]), "full", folder=tmp_path, rows=["plain"], seed=3, progress=False).outcomes
    assert one.job.seed == 3  # as many as the recipe has
    with pytest.raises(ValueError, match=r"^seed must be a whole number of at least 0, got -1$"):
        reproduce(made(), folder=tmp_path, seed=-1)


def test_seeds_side_by_side_give_what_each_gives_alone(tmp_path, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(Here, "populations", lambda *_: True)
    together = reproduce(made(), folder=tmp_path / "a", progress=False, announce=told.append)
    assert "2 runs side by side: plain" in told
    monkeypatch.setattr(Here, "populations", lambda *_: False)
    alone = reproduce(made(), folder=tmp_path / "b", progress=False)
    for key, cell in alone.cells.items():
        assert together.cells[key].numbers == pytest.approx(cell.numbers, rel=1e-4)


def test_a_row_that_diverges_is_an_outcome(tmp_path):
    rows = [{"label": "wild", "system": {"name": "rnn", "activation": "relu"}, "published": {"error": 0.1},
             "training": {"optimizer": "sgd", "lr": 1e30}},
            {"label": "plain", "system": {"name": "rnn"}}]  # fmt: skip
    recipe = made(rows=rows, ordering=[["plain", "wild"]], seeds=[1])
    done = reproduce(recipe, "full", folder=tmp_path, progress=False)
    assert done.cells["wild", "error"].verdict_text() == "worse: diverged"
    assert done.pairs[0].outcome == "ordering holds with one seed"
    assert done.cells["wild", "parameters"].values == [105.0 - 8]
    again = reproduce(recipe, "full", folder=tmp_path, progress=False)
    assert again.cells["wild", "error"].gaps == ["diverged"]


def test_missing_data_is_an_outcome(tmp_path):
    recipe = made(task={"name": "mnist", "width": 28})
    done = reproduce(recipe, folder=tmp_path / "runs", data=str(tmp_path), progress=False)
    cell = done.cells["plain", "error"]
    assert cell.verdict_text().startswith("not comparable: no data: ")
    assert "mnist" in cell.reason
    assert done.page.exists()


def test_a_missing_test_part_is_an_outcome(tmp_path, small_data):
    for path in small_data.glob("mnist/train*"):
        (tmp_path / "mnist").mkdir(exist_ok=True)
        (tmp_path / "mnist" / path.name).write_bytes(path.read_bytes())
    recipe = made(task={"name": "mnist", "width": 28})
    done = reproduce(recipe, folder=tmp_path / "runs", data=str(tmp_path), progress=False)
    assert "no data: mnist/t10k" in done.cells["plain", "error"].verdict_text()


def test_another_version_of_the_data_can_be_asked_for(tmp_path, small_data):
    recipe = made(task={"name": "har-subset"}, seeds=[1])
    done = reproduce(recipe, folder=tmp_path, task="har", data=str(small_data), rows=["plain"], progress=False)
    assert Run(tmp_path / "plain/seed-1").config["task"]["name"] == "har"
    assert done.outcomes[0].data.task.name == "har"


def test_rates_are_tried_until_the_task_is_solved(tmp_path, monkeypatch):
    from evenflow.lab.tasks import Adding

    told: list[str] = []
    recipe = made(lrs=[0.1, 0.01, 0.001], seeds=[1])
    monkeypatch.setattr(Adding, "solved", lambda self, metric: False)
    reproduce(recipe, folder=tmp_path / "a", rows=["plain"], progress=False, announce=told.append)
    assert len(told) == 3
    monkeypatch.setattr(Adding, "solved", lambda self, metric: True)
    done = reproduce(recipe, folder=tmp_path / "b", rows=["plain"], progress=False, announce=told.append)
    assert len(told) == 4
    assert done.outcomes[0].job.lr == 0.1
    all_of_them = made(lrs=[0.1, 0.01], seeds=[1], search="best")
    reproduce(all_of_them, folder=tmp_path / "c", rows=["plain"], progress=False, announce=told.append)
    assert len(told) == 6


def test_a_folder_with_other_settings_is_refused(tmp_path):
    reproduce(made(), folder=tmp_path, rows=["plain"], seeds=1, progress=False)
    with pytest.raises(ValueError) as error:
        reproduce(made(), "full", folder=tmp_path, rows=["plain"], seeds=1, progress=False)
    assert str(error.value) == (
        f"steps must stay as the run '{tmp_path}/plain/seed-1' began, 4, got 6: choose another folder"
    )


def test_a_slip_in_the_last_row_costs_no_run(tmp_path):
    rows = [{"label": "plain", "system": {"name": "rnn"}}, {"label": "slip", "system": {"name": "rnn", "mapp": "free"}}]
    with pytest.raises(ValueError) as error:
        reproduce(made(rows=rows, ordering=[]), folder=tmp_path, progress=False)
    assert "mapp" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_costly_measures_are_kept_beside_the_run(tmp_path, small_data, monkeypatch):
    columns = [{"name": "gap", "measure": "metric_gap"}, {"name": "accuracy", "measure": "test_metric"}]
    recipe = made(task={"name": "har-subset"}, columns=columns, rows=[{"label": "plain", "system": {"name": "rnn"}}],
                  ordering=[], seeds=[1])  # fmt: skip
    done = reproduce(recipe, folder=tmp_path, data=str(small_data), progress=False)
    assert "metric_gap" in json.loads((tmp_path / "plain/seed-1/measured.json").read_text())
    monkeypatch.setattr("evenflow.lab.recipes.run_data.RunData.generalization_gap", None)
    again = reproduce(recipe, folder=tmp_path, data=str(small_data), progress=False)
    assert again.cells["plain", "gap"].values == done.cells["plain", "gap"].values


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main([str(a) for a in arguments])
    return left.value.code


def test_the_command_runs_a_recipe_and_names_its_page(tmp_path, capsys):
    assert run("reproduce", "galvan/figure-3.1", "--rows", "radius 0.8, radius 1.2", "--folder", tmp_path, "-q") == 0
    shown = capsys.readouterr().out
    assert "radius 0.8" in shown
    assert "ordering holds" in shown
    assert str(tmp_path / "report.html") in shown.replace("\n", "")
    assert run("reproduce", "galvan/figure-9", "--folder", tmp_path) == 2
    assert "unknown recipe 'galvan/figure-9', did you mean" in capsys.readouterr().err
    assert run("reproduce", "galvan/figure-3.1", "--scale", "huge", "--folder", tmp_path) == 2
    assert "scale must be one of quick, full, got 'huge'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["recipes", "reproduce"])
def test_both_commands_explain_themselves_with_an_example(command, capsys):
    assert run(command, "--help") == 0
    assert f"Example:  evenflow {command}" in capsys.readouterr().out


def test_the_list_has_every_recipe_with_its_times(capsys):
    from evenflow.lab.recipes import names

    assert run("recipes") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in names())
    assert "≈" in shown
