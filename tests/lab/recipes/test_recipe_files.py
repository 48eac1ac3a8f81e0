"""The recipes that come with evenflow: each is read and built at both scales, and its numbers are the documents'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evenflow.checks import unknown
from evenflow.lab.recipes import load, names
from evenflow.lab.recipes.attempts import missing_data
from evenflow.lab.recipes.configs import epochs_to_updates, plan
from evenflow.lab.recipes.recipe_catalog import DOCUMENTS
from evenflow.lab.recipes.recipe_table import estimate
from evenflow.lab.training import Settings, build
from evenflow.systems import NETWORKS, create

# Every table and figure that is to be reproduced, by document.
WANTED = {
    "urnn": "table-3 table-4 table-5 table-7 figure-1 figure-2 figure-3 figure-4 speed",
    "factorized": "figure-1 figure-2 figure-3 figure-4 figure-5 figure-6-left figure-6-right table-1 table-2 table-3 "
    "table-4 table-5 appendix-5.2",
    "sgornn": "table-1 table-2 table-3 figure-1 figure-2 figure-3 figure-4",
    "galvan": "figure-3.1 artificial-tasks table-4.1 figure-4.1",
    "spectral": "figure-1 figure-2 table-2 figure-3 figure-4 figure-5 table-3 table-4 figure-6 figure-7",
}
LARGEST = 128  # units of a model that is built here; larger ones are made with fewer, which their options allow
QUICK_LIMIT = 600  # seconds by the cost model, which knows orders of magnitude: the measured limit is 180


@pytest.mark.parametrize("document", WANTED)
def test_every_table_and_figure_is_there(document):
    for name in WANTED[document].split():
        assert load(f"{document}/{name}").document == document
    assert document in DOCUMENTS


@pytest.mark.parametrize("name", names())
def test_every_config_of_every_recipe_builds(name, small_data):
    recipe, seen = load(name), set()
    for scale in ("quick", "full"):
        for job in plan(recipe, scale, Path("runs"), data=str(small_data)).jobs():
            task = job.make_task()
            gap = missing_data(task)
            config = job.config if gap or task.name == "ptb-words" else epochs_to_updates(job.config, task)
            training = {k: v for k, v in config["training"].items() if k != "decay_every_epochs"}
            settings = Settings.from_dict(training)
            if not gap and task.name != "ptb-words":  # the made text is too short for the documents' batches
                settings.for_task(task)
            system = config["system"]
            system["hidden_size"] = min(system["hidden_size"], LARGEST)
            system["depth"] = min(system.get("depth", 2), 2)
            if config["system"]["name"] not in NETWORKS:
                del system["depth"]
            key = json.dumps([config["task"], system])
            if key in seen:
                continue
            seen.add(key)
            if not gap:
                build(task, system, settings.seed)
            elif config["system"]["name"] not in NETWORKS:
                create(system.pop("name"), 2, system.pop("hidden_size"), **system)
    assert seen


@pytest.mark.parametrize("name", names())
def test_every_recipe_says_what_it_is_and_what_was_left_open(name):
    recipe = load(name)
    assert recipe.notes
    assert all(note.endswith(".") for note in (*recipe.notes, recipe.measures, recipe.quick.note))
    assert not recipe.title.endswith(".")
    seconds, modelled = estimate(recipe, "quick")
    assert 0 < seconds < QUICK_LIMIT
    if not modelled:
        assert seconds <= 180
    # An ordering that the quick scale keeps has both of its rows there; else the scale says that it is too small.
    labels = {row.label for row in recipe.rows_at("quick")}
    if recipe.ordering and recipe.quick.ordering is not False:
        assert any(len(labels & set(chain)) > 1 for chain in recipe.claims("quick"))


def published(name: str, label: str, column: str):
    return load(name).row(label).published[column]


@pytest.mark.parametrize(
    ("name", "label", "column", "number"),
    [
        ("sgornn/table-1", "SGORNN, T=5000", "parameters", 1411),
        ("sgornn/table-1", "VPRNN, T=500", "parameters", 1409),
        ("sgornn/table-1", "FastRNN, T=500", "parameters", 16899),
        ("sgornn/table-1", "LSTM, T=500", "parameters", 67201),
        ("sgornn/table-1", "SGORNN, T=5000", "converges", "yes"),
        ("sgornn/table-2", "SGORNN", "test accuracy (%)", 94.07),
        ("sgornn/table-3", "VPRNN", "recurrent parameters", 67840),
        ("sgornn/table-3", "LSTM", "test perplexity", 126.78),
        ("urnn/table-3", "RNN, N=100", "accuracy (%)", 9.36),
        ("urnn/table-4", "uRNN, N=400", "accuracy (%)", 56.73),
        ("urnn/table-5", "uRNN, |x|", "test perplexity", 613.89),
        ("urnn/table-7", "uGRU, BPTT 150", "test perplexity", 102.07),
        ("factorized/table-1", "m=0.1", "test accuracy (%)", 94.10),
        ("factorized/table-2", "m=none, identity", "test accuracy (%)", 42.72),
        ("factorized/table-3", "m=100", "bits per character", 2.04),
        ("factorized/table-4", "m=none, identity", "accuracy (%)", 45.35),
        ("factorized/table-5", "geoSGD, 1000 units", "seconds per 1000 updates", 711.2),
        ("galvan/table-4.1", "200 units", "validation loss", 6.03),
        ("spectral/table-2", "Spectral-RNN", "test accuracy (%)", 97.7),
        ("spectral/table-3", "Spectral-RNN, 2 layers", "test perplexity", 121.3),
        ("spectral/table-4", "ArrowHead, Spectral-RNN", "test accuracy", 0.800),
        ("spectral/table-4", "50words, LSTM", "parameters", 7218),
    ],
)
def test_published_numbers_are_the_documents(name, label, column, number):
    assert published(name, label, column) == number


def test_the_sizes_of_the_adding_table_are_those_of_the_models():
    recipe = load("sgornn/table-1")
    for job in plan(recipe, "full", Path("runs"), rows=[r.label for r in recipe.rows if r.group == "T=500"]).jobs():
        model = build(job.make_task(), job.config["system"], 1)
        assert sum(p.numel() for p in model.parameters()) == job.row.published["parameters"]


def test_spectral_table_4_has_21_sets_and_four_systems():
    recipe = load("spectral/table-4")
    assert len(recipe.rows) == 84
    assert len({row.group for row in recipe.rows}) == 21


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(ValueError) as error:
        load("sgornn/table-9")
    assert "did you mean sgornn/table-" in str(error.value)
    assert str(error.value).startswith(unknown("recipe", "sgornn/table-9", ["x"])[:31])
