"""Rows, seeds and rates that share a shape as one population, and recipes that are stopped by the clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from made_recipes import made

from evenflow.lab import cli
from evenflow.lab.launches import Here
from evenflow.lab.recipes import load, provenance, recipe_populations, reproduce
from evenflow.lab.recipes.configs import plan
from evenflow.lab.recipes.recipe_populations import populations
from evenflow.lab.training import Run, stopping
from evenflow.lab.training.loop import Loop
from evenflow.lab.training.stopping import TimeUp

ROUNDING = 1e-4  # relative: a population adds up in another order than a run alone
MARGINS = [
    {"label": f"m={margin}", "system": {"name": "factorized", "margin": margin}, "training": {"lr": lr}}
    for margin, lr in ((0.1, 0.01), (0.5, 0.001), (1.0, 0.003))
]


@pytest.fixture
def gpu(monkeypatch) -> None:
    """As if populations paid here."""
    monkeypatch.setattr(Here, "populations", lambda *_: True)


def shapes(recipe, folder: Path, **options) -> list[list[str]]:
    return [[job.title for job in jobs] for jobs in populations(plan(recipe, "full", folder, **options), Here())]


def test_rows_of_one_shape_train_together_and_end_as_they_would_alone(tmp_path, monkeypatch, gpu):
    recipe, told = made(rows=MARGINS, ordering=[]), []
    together = reproduce(recipe, folder=tmp_path / "a", progress=False, announce=told.append)
    assert told[0] == "6 runs side by side: m=0.1; m=0.5; m=1.0"
    monkeypatch.setattr(Here, "populations", lambda *_: False)
    alone = reproduce(recipe, folder=tmp_path / "b", progress=False)
    for key, cell in alone.cells.items():
        assert together.cells[key].numbers == pytest.approx(cell.numbers, rel=ROUNDING)
    assert [o.values for o in together.outcomes] != [together.outcomes[0].values] * 6


def test_tasks_of_one_size_train_together(tmp_path, monkeypatch, gpu):
    rows = [{"label": name, "system": {"name": "rnn"}, "task": {"name": name, "length": 10}}
            for name in ("adding", "multiplication", "copy")]  # fmt: skip
    rows[0]["task"]["variant"] = "galvan"
    recipe = made(rows=rows, ordering=[], seeds=[1], task={"length": 10})
    assert shapes(recipe, tmp_path) == [["adding, seed 1", "multiplication, seed 1"]]
    together = reproduce(recipe, folder=tmp_path / "a", progress=False)
    monkeypatch.setattr(Here, "populations", lambda *_: False)
    alone = reproduce(recipe, folder=tmp_path / "b", progress=False)
    for key, cell in alone.cells.items():
        assert together.cells[key].numbers == pytest.approx(cell.numbers, rel=ROUNDING)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"system": {"name": "rnn"}}, {"system": {"name": "urnn"}}),
        ({"task": {"length": 10}}, {"task": {"length": 11}}),
        ({}, {"training": {"batch_size": 4}}),
        ({}, {"system": {"name": "rnn", "activation": "relu"}}),
        ({}, {"training": {"penalty": "stabilizer(0.1)"}}),
        ({}, {"training": {"optimizer": "temporal-simplex"}}),
    ],
    ids=[
        "another system",
        "another length",
        "another batch",
        "another activation",
        "a penalty of states",
        "another method",
    ],
)
def test_what_differs_in_shape_or_method_stays_apart(tmp_path, gpu, first, second):
    rows = [{"system": {"name": "rnn"}} | first | {"label": "a"}, {"system": {"name": "rnn"}} | second | {"label": "b"}]
    assert shapes(made(rows=rows, ordering=[], seeds=[1]), tmp_path) == []


def test_a_penalty_of_the_weights_is_no_reason_to_stay_apart(tmp_path, gpu):
    rows = [
        {"label": "a", "system": {"name": "rnn"}},
        {"label": "b", "system": {"name": "rnn"}, "training": {"penalty": "weight_decay(0.1)"}},
    ]
    assert len(shapes(made(rows=rows, ordering=[], seeds=[1]), tmp_path)) == 1


def test_recipes_that_measure_time_train_one_by_one(tmp_path, gpu):
    assert (
        populations(plan(load("factorized/table-5"), "full", tmp_path, seeds=3, rows=["SGD, 128 units"]), Here()) == []
    )
    column = {"name": "seconds", "measure": "seconds_per_1000"}
    rows = [{"label": "plain", "system": {"name": "rnn"}}]
    assert shapes(made(rows=rows, ordering=[], columns=[column]), tmp_path) == []
    assert len(shapes(made(rows=rows, ordering=[]), tmp_path)) == 1


def test_all_rates_run_and_the_first_that_solves_still_counts(tmp_path, monkeypatch, gpu):
    from evenflow.lab.tasks import Adding

    told: list[str] = []
    monkeypatch.setattr(Adding, "solved", lambda self, metric: True)
    recipe = made(lrs=[0.1, 0.01, 0.001], seeds=[1])
    done = reproduce(recipe, folder=tmp_path, rows=["plain"], progress=False, announce=told.append)
    assert told[0] == "3 runs side by side: plain"
    assert done.outcomes[0].job.lr == 0.1
    assert all(Run(f).status["state"] == "finished" for f in (tmp_path / "plain/seed-1").iterdir())
    # The machine was busy with all of them, a third of the time with each.
    assert done.outcomes[0].seconds == pytest.approx(
        sum(Run(f).metrics["seconds"][-1] for f in (tmp_path / "plain/seed-1").iterdir()) / 3, abs=0.05
    )


def test_a_search_that_an_earlier_go_has_ended_trains_no_further_rates(tmp_path, monkeypatch, gpu):
    from evenflow.lab.tasks import Adding

    monkeypatch.setattr(Adding, "solved", lambda self, metric: True)
    monkeypatch.setattr(Here, "populations", lambda *_: False)
    recipe = made(lrs=[0.1, 0.01, 0.001], seeds=[1])
    reproduce(recipe, "full", folder=tmp_path, rows=["plain"], progress=False)
    monkeypatch.setattr(Here, "populations", lambda *_: True)
    assert shapes(recipe, tmp_path, rows=["plain"]) == []


def test_a_population_that_does_not_fit_is_halved(tmp_path, monkeypatch, gpu):
    train, sizes = recipe_populations.train_population, []

    def tight(configs, *rest, **options):
        sizes.append(len(configs))
        if len(configs) > 2:
            raise torch.OutOfMemoryError("full")
        return train(configs, *rest, **options)

    monkeypatch.setattr(recipe_populations, "train_population", tight)
    done = reproduce(made(rows=MARGINS[:2], ordering=[]), folder=tmp_path, progress=False)
    assert sizes == [4, 2, 2]
    assert all(cell.values for cell in done.cells.values())


def test_a_population_takes_no_more_than_the_memory_allows(tmp_path, monkeypatch, gpu):
    recipe = made(rows=MARGINS, ordering=[])
    job = next(plan(recipe, "full", tmp_path).jobs())
    monkeypatch.setattr(recipe_populations, "MOST_NUMBERS", 2.5 * recipe_populations._numbers(job))
    assert [len(titles) for titles in shapes(recipe, tmp_path)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("beside", "ended"),
    [(False, ["plain", "plain", "orthogonal"]), (True, ["plain", "plain"])],
    ids=["one by one", "side by side"],
)
def test_out_of_time_the_record_holds_what_has_ended_and_the_same_call_goes_on(tmp_path, monkeypatch, beside, ended):
    monkeypatch.setattr(Here, "populations", lambda *_: beside)
    whole = reproduce(made(), "full", folder=tmp_path / "whole", progress=False)
    draw, calls = Loop.next_batch, []

    def slow(self):
        calls.append(1)
        if len(calls) == 20:  # of 24, in the second row
            raise TimeUp
        return draw(self)

    monkeypatch.setattr(Loop, "next_batch", slow)
    part = reproduce(made(), "full", folder=tmp_path / "parts", limit=60, progress=False)
    assert part.left == 4 - len(ended)
    assert all(Run(p.parent).status["state"] in ("finished", "interrupted") for p in tmp_path.rglob("config.toml"))
    record = json.loads((tmp_path / "parts/record.json").read_text())
    assert [r["row"] for r in record["runs"]] == ended
    monkeypatch.setattr(Loop, "next_batch", draw)
    rest = reproduce(made(), "full", folder=tmp_path / "parts", limit=60, progress=False)
    assert rest.left == 0
    assert [c.values for c in rest.cells.values()] == [c.values for c in whole.cells.values()]


def test_out_of_time_before_anything_has_ended_there_is_no_record(tmp_path, monkeypatch, capsys):
    def over(self):
        raise TimeUp

    monkeypatch.setattr(Loop, "next_batch", over)
    arguments = ["reproduce", "urnn/table-3", "--rows", "RNN, N=20", "--folder", str(tmp_path), "--seconds", "60", "-q"]
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 0
    assert "Out of time: 0 of 1 rows and seeds have ended; the same command goes on." in capsys.readouterr().out
    assert not (tmp_path / "record.json").exists()


def test_a_persons_interruption_is_not_the_clocks(tmp_path, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "next_batch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        reproduce(made(), folder=tmp_path, limit=600, progress=False)


def test_the_time_of_a_recipe_ends_in_a_run(tmp_path):
    done = reproduce(load("sgornn/table-1"), folder=tmp_path, rows=["SGORNN, T=5000"], limit=0.5, progress=False)
    assert done.left == 1
    with pytest.raises(ValueError, match="seconds must be a number above 0, got 0"):
        reproduce(made(), folder=tmp_path / "never", limit=0, progress=False)


def test_once_the_time_is_over_no_further_run_begins(tmp_path, monkeypatch):
    """Over in the last look of a run, when it is too late to stop that one."""
    test = Loop.test

    def last(loop):
        stopping._deadline.set(0.0)
        test(loop)

    monkeypatch.setattr(Loop, "test", last)
    done = reproduce(made(), "full", folder=tmp_path, limit=60, progress=False)
    assert done.left == 3
    assert len(list(tmp_path.rglob("config.toml"))) == 1


def test_a_record_keeps_the_rows_of_earlier_goes(tmp_path):
    for row in ("plain", "orthogonal", "plain"):
        done = reproduce(made(), folder=tmp_path, rows=[row], progress=False)
    record = json.loads(done.record.read_text())
    assert [(r["row"], r["seed"]) for r in record["runs"]] == [
        ("orthogonal", 1), ("orthogonal", 2), ("plain", 1), ("plain", 2)]  # fmt: skip
    assert [row["label"] for row in record["rows"]] == ["plain"]
    run = record["runs"][-1]
    assert run["outcome"] == "finished"
    assert run["updates"] == 4
    assert run["values"]["error"] == pytest.approx(done.cells["plain", "error"].values[1], rel=1e-5)


def test_a_run_that_is_read_back_keeps_where_it_was_made(tmp_path, monkeypatch):
    reproduce(made(), folder=tmp_path, progress=False)
    monkeypatch.setattr(provenance, "hardware", lambda _: "another machine")
    monkeypatch.setattr(provenance.evenflow, "__version__", "9.9")
    done = reproduce(made(), folder=tmp_path, progress=False)
    runs = json.loads(done.record.read_text())["runs"]
    assert all(r["hardware"] != "another machine" and r["evenflow"] != "9.9" for r in runs)


def test_a_run_that_goes_on_elsewhere_names_both(tmp_path, monkeypatch):
    jobs = list(plan(made(), "quick", tmp_path).jobs())
    monkeypatch.setattr(provenance, "hardware", lambda _: "a machine where it did not begin")
    provenance.write(jobs)
    monkeypatch.setattr(provenance, "hardware", lambda _: "one machine")
    provenance.write(jobs)
    (jobs[0].folder / "config.toml").touch()
    before = provenance.read(jobs[0])
    monkeypatch.setattr(provenance, "hardware", lambda _: "another machine")
    for _ in range(2):
        provenance.write(jobs)
    after = provenance.read(jobs[0])
    assert after["hardware"] == "one machine, then another machine"
    assert after["torch"] == before["torch"]


def test_long_updates_are_saved_more_often_at_full_scale(tmp_path):
    recipe = load("sgornn/table-1")
    every = {job.row.label: job.config["training"]["checkpoint_every"] for job in plan(recipe, "full", tmp_path).jobs()}
    assert every["SGORNN, T=500"] == 2000
    assert every["SGORNN, T=5000"] == 200
