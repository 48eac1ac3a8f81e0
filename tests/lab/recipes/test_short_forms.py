"""Short forms of recipe files: an entry for several rows, notes and sets that a document's recipes share."""

from __future__ import annotations

import pytest
from made_recipes import table

from evenflow.lab.recipes import parse
from evenflow.lab.recipes.configs import config_of
from evenflow.lab.recipes.short_forms import expand, write_out


def test_an_entry_stands_for_every_combination_in_order():
    entry = {
        "over": {"T": [5, 50], "m": [0.0, "none"]},
        "label": "{line}, {group}",
        "group": "T={T}",
        "line": "m={m}",
        "use": ["{line}"],
        "x": "{T}",
        "system": {"margin": "{m}", "name": "factorized"},
        "published": {"loss": [1, 2, "", 4]},
    }
    rows = expand(entry)
    assert [row["label"] for row in rows] == ["m=0, T=5", "m=none, T=5", "m=0, T=50", "m=none, T=50"]
    assert rows[2] == {
        "label": "m=0, T=50",
        "group": "T=50",
        "line": "m=0",
        "use": ["m=0"],
        "x": 50,
        "system": {"margin": 0.0, "name": "factorized"},
    }
    assert [row.get("published") for row in rows] == [{"loss": 1}, {"loss": 2}, None, {"loss": 4}]


def test_an_entry_without_over_is_one_row():
    assert expand({"label": "a {b}", "published": {"loss": 1.0}}) == [{"label": "a {b}", "published": {"loss": 1.0}}]


def test_wrong_entries_are_refused():
    with pytest.raises(ValueError, match=r"^unknown name in 'a {lenght}' 'lenght', did you mean length"):
        expand({"over": {"length": [1]}, "label": "a {lenght}"})
    with pytest.raises(ValueError, match=r"^published 'loss' must have a value for each of 2 rows, got 3.0$"):
        expand({"over": {"length": [1, 2]}, "label": "{length}", "published": {"loss": 3.0}})


def test_every_row_gives_what_the_entries_leave_out():
    changes = {
        "every_row": {"over": {"size": [4, 8]}, "label": "{line} {size}", "system": {"hidden_size": "{size}"}},
        "rows": [{"line": "a"}, {"line": "b", "system": {"hidden_size": 2}, "label": "{line} of {size}"}],
        "ordering": [{"over": {"size": [4, 8]}, "chain": ["a {size}", "b of {size}"]}],
    }
    recipe = parse(table(**changes))
    assert [row.label for row in recipe.rows] == ["a 4", "a 8", "b of 4", "b of 8"]
    assert [row.system["hidden_size"] for row in recipe.rows] == [4, 8, 2, 2]
    assert recipe.ordering == (("a 4", "b of 4"), ("a 8", "b of 8"))


def test_sets_of_the_recipe_lie_below_its_own_tables():
    sets = {
        "plain": {"system": {"name": "rnn", "hidden_size": 3}},
        "long": {"task": {"length": 90}, "training": {"lr": 0.5}},
    }
    recipe = parse(table(use=["plain", "long"], sets=sets))
    assert recipe.system == {"name": "rnn", "hidden_size": 8}
    assert config_of(recipe, recipe.rows[1], "full")["training"]["lr"] == 0.5
    assert recipe.task["length"] == 10
    with pytest.raises(ValueError, match=r"^unknown set of the recipe 'lon', did you mean long"):
        parse(table(use=["lon"], sets=sets))


def test_notes_and_sets_of_the_document():
    shared = {"notes": {"start": "It starts at zero."}, "sets": {"a": {"task": {"k": 1}}, "b": {"task": {"k": 2}}}}
    values = write_out({"notes": ["start", "A sentence."], "sets": {"b": {"task": {"k": 3}}}}, shared)
    assert values["notes"] == ["It starts at zero.", "A sentence."]
    assert values["sets"] == {"a": {"task": {"k": 1}}, "b": {"task": {"k": 3}}}
    with pytest.raises(ValueError, match=r"^unknown note that is no sentence 'strat', did you mean start"):
        write_out({"notes": ["strat"]}, shared)
