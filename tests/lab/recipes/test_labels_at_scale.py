"""Labels of rows at a scale: they hold the length that the rows are trained with."""

from __future__ import annotations

import re

import pytest
from made_recipes import made

from evenflow.lab.recipes import reproduce
from evenflow.lab.recipes.configs import config_of
from evenflow.lab.recipes.labels_at_scale import at_scale, labels_at
from evenflow.lab.recipes.recipe_catalog import load, names

ROW = {"label": "plain, T=50", "group": "T=50", "line": "plain", "system": {"name": "rnn"}, "task": {"length": 50}}


@pytest.mark.parametrize("name", names())
def test_every_quick_row_carries_its_own_length(name):
    recipe = load(name)
    quick = at_scale(recipe, "quick")
    for row, shown in zip(recipe.rows_at("quick"), quick.rows_at("quick"), strict=True):
        length = config_of(recipe, row, "quick")["task"].get("length")
        for text in (shown.label, shown.group, shown.line):
            assert {int(number) for number in re.findall(r"\b[TNL]=(\d+)", text)} <= {length}
    assert {label for chain in quick.claims("quick") for label in chain} <= {row.label for row in quick.rows}
    assert len({row.label for row in quick.rows}) == len(recipe.rows)
    assert at_scale(quick, "quick") == quick
    assert at_scale(recipe, "full") == recipe


def test_sgornn_table_1():
    shown = labels_at(load("sgornn/table-1"), "quick")
    assert shown["SGORNN, T=5000"] == "SGORNN, T=100 for 5000"
    assert shown["SGORNN, T=500"] == "SGORNN, T=500"  # trained at this length if it is asked for


def test_folders_page_and_record_have_the_length(tmp_path):
    recipe = made(rows=[ROW], ordering=[], seeds=[1], quick={"task": {"length": 6}, "training": {"steps": 2}})
    for label in ("plain, T=50", "plain, T=6 for 50"):
        done = reproduce(recipe, rows=[label], folder=tmp_path, progress=False)
        assert done.labels == ["plain, T=6 for 50"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["plain-T-6-for-50"]
    assert "T=6 for 50" in done.page.read_text()
    assert not re.search(r"T=50\b", done.page.read_text())
    assert '"row": "plain, T=6 for 50"' in done.record.read_text()
