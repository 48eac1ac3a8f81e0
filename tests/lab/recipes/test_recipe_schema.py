"""What a recipe file may say, and how it says no."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_recipes import made, table

from evenflow.lab.recipes import parse, read
from evenflow.lab.recipes.configs import config_of, epochs_to_updates, plan, seeds_of
from evenflow.lab.recipes.schema import folder_name
from evenflow.lab.tasks import Adding, Digits


def refused(message: str, **changes) -> None:
    with pytest.raises(ValueError) as error:
        parse(table(**changes))
    assert str(error.value) == message


def test_an_unknown_key_is_refused_with_the_nearest_known():
    refused("unknown key of a recipe 'colums', did you mean columns?", colums=[])
    refused("unknown key of scale quick 'stepps', did you mean sets?", quick={"stepps": 3})
    row = {"label": "a", "publishd": {}}
    refused("unknown key of row 'a' 'publishd', did you mean published?", rows=[row])
    refused("unknown key of a column 'tolerence', did you mean tolerance?",
            columns=[{"name": "a", "measure": "best_loss", "tolerence": 1}])  # fmt: skip


def test_names_that_nothing_goes_by_are_refused():
    refused("unknown measure 'best_los', did you mean best_loss or test_loss?",
            columns=[{"name": "a", "measure": "best_los"}])  # fmt: skip
    refused("unknown figure 'lins', did you mean lines?", figures=["lins"])
    refused("search must be one of until-converged, best, got 'all'", search="all")
    refused("unknown row of made/table-1 'plane', did you mean plain?", ordering=[["plane", "orthogonal"]])
    refused("unknown set of row 'plain' 'other', known are plain", rows=[{"label": "plain", "use": ["other"]}])
    refused("unknown column of row 'plain' 'eror', did you mean error?",
            rows=[{"label": "plain", "published": {"eror": 1.0}}], ordering=[])  # fmt: skip
    refused("unknown set of a scale 'plan', did you mean plain?", quick={"sets": {"plan": {}}})
    refused("unknown table of set 'plain' 'sistem', did you mean system?",
            sets={"plain": {"sistem": {}}})  # fmt: skip


def test_a_recipe_needs_its_parts():
    without = table()
    del without["title"]
    with pytest.raises(ValueError) as error:
        parse(without)
    assert str(error.value) == "a recipe must have a title"
    refused("a recipe must have at least one column and one row", rows=[])
    refused("rows must have different labels", rows=[{"label": "a, b"}, {"label": "a b"}], ordering=[])
    refused("row '?' must have a label", rows=[{"system": {}}])


def test_a_file_that_is_no_toml_is_named(tmp_path):
    (tmp_path / "broken.toml").write_text("document = ")
    with pytest.raises(ValueError) as error:
        read(tmp_path / "broken.toml")
    assert str(error.value).startswith("recipe broken.toml: ")


def test_later_tables_win():
    recipe = made(
        quick={"training": {"steps": 4}, "sets": {"plain": {"task": {"length": 12}}}},
        rows=[{"label": "plain", "use": ["plain"], "system": {"activation": "relu"}}],
        ordering=[],
    )
    quick, full = (config_of(recipe, recipe.rows[0], scale, seed=7, lr=0.5) for scale in ("quick", "full"))
    assert quick["task"] == {"name": "adding", "length": 12}
    assert full["task"] == {"name": "adding", "length": 10}
    assert quick["system"] == {"hidden_size": 8, "name": "rnn", "activation": "relu"}
    assert (quick["training"]["steps"], full["training"]["steps"]) == (4, 6)
    assert (quick["training"]["seed"], quick["training"]["lr"]) == (7, 0.5)


def test_steps_and_epochs_stand_for_each_other():
    training = made().training
    epochs = {k: v for k, v in training.items() if k != "steps"} | {"epochs": 3}
    recipe = made(training=epochs)
    assert "epochs" not in config_of(recipe, recipe.rows[0], "quick")["training"]
    assert config_of(recipe, recipe.rows[0], "full")["training"]["epochs"] == 3
    recipe = made(quick={"training": {"epochs": 2}})
    assert "steps" not in config_of(recipe, recipe.rows[0], "quick")["training"]


def test_decay_is_counted_in_epochs_of_a_data_set():
    config = {"task": {}, "system": {}, "training": {"batch_size": 100, "decay_every_epochs": 2}}
    assert epochs_to_updates(config, Digits())["training"] == {"batch_size": 100, "decay_every": 30}
    with pytest.raises(ValueError) as error:
        epochs_to_updates(config, Adding())
    assert str(error.value) == "decay_every_epochs goes with a data set, got 2 with task adding"


def test_a_plan_has_a_folder_for_every_row_seed_and_rate():
    found = plan(made(lrs=[0.1, 0.01]), "quick", Path("runs"), seeds=3, rows=["plain"])
    assert [str(job.folder) for job in found.jobs()][:3] == [
        "runs/plain/seed-1/lr-0.1",
        "runs/plain/seed-1/lr-0.01",
        "runs/plain/seed-2/lr-0.1",
    ]
    assert len(found.attempts) == 3
    assert seeds_of(made(), "quick") == (1, 2)
    assert seeds_of(made(seeds=[5]), "quick", 3) == (5, 6, 7)
    with pytest.raises(ValueError) as error:
        seeds_of(made(), "quick", 0)
    assert str(error.value) == "seeds must be a whole number of at least 1, got 0"


def test_the_data_folder_goes_to_tasks_that_read_files_alone():
    recipe = made(task={"name": "mnist"})
    assert config_of(recipe, recipe.rows[0], "quick", data="/sets")["task"]["data"] == "/sets"
    assert "data" not in config_of(made(), made().rows[0], "quick", data="/sets")["task"]


def test_labels_are_read_with_commas_of_their_own():
    recipe = made(rows=[{"label": "a, T=5"}, {"label": "b, T=5"}, {"label": "c"}], ordering=[])
    assert recipe.split_labels("a, T=5, c") == ["a, T=5", "c"]
    assert recipe.split_labels("b, T=5; a, T=5") == ["b, T=5", "a, T=5"]
    with pytest.raises(ValueError) as error:
        recipe.split_labels("a, T=6")
    assert str(error.value).startswith("unknown row of made/table-1 'a'")


def test_a_label_makes_a_folder_name():
    assert folder_name("uRNN, |x|, N=20") == "uRNN-x-N-20"
    assert folder_name("λ=0.1") == "λ-0.1"


@pytest.mark.parametrize(
    "text",
    [
        "rows = 1",
        'columns = ["error"]',
        'rows = ["plain"]',
        "notes = [1]",
        "notes = false",
        "sets = 3",
        "figures = 2",
        "rows = " + "[" * 3000,
    ],
)
def test_a_file_of_another_form_is_refused(text, tmp_path):
    path = tmp_path / "table-1.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"^recipe table-1\.toml: ") as error:
        read(path)
    assert "\n" not in str(error.value)
