"""Records beside the runs of a recipe that are damaged: what they held is measured or written again."""

from __future__ import annotations

import json
import os

import pytest
from made_recipes import made

from evenflow.lab.recipes import reproduce
from evenflow.lab.recipes.attempts import STORED
from evenflow.lab.recipes.provenance import FILE as ORIGIN
from evenflow.lab.recipes.recipe_catalog import read
from evenflow.lab.recipes.recipe_record import FILE as RECORD

DEEP = b"[" * 100_000
NO_TABLES = [b"", b"\xff", b"{", b"3", b"[1]", b"null", DEEP]
ROWS = [{"label": "plain", "system": {"name": "rnn"}}]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, small_data):
    """A recipe with a costly measure, whose value is stored beside the run."""
    columns = [{"name": "gap", "measure": "metric_gap"}, {"name": "accuracy", "measure": "test_metric"}]
    task = {"name": "har-subset", "data": str(small_data)}
    recipe = made(task=task, columns=columns, rows=ROWS, ordering=[], seeds=[1])
    folder = tmp_path_factory.mktemp("recipe")
    return recipe, folder, reproduce(recipe, folder=folder, progress=False)


def again(finished):
    """What is measured when the recipe is run again over its finished runs."""
    recipe, folder, first = finished
    cells = reproduce(recipe, folder=folder, progress=False).cells
    return [cell.values for cell in cells.values()], [cell.values for cell in first.cells.values()]


@pytest.mark.parametrize(
    "content",
    [*NO_TABLES, b'{"metric_gap": null}', b'{"metric_gap": [1]}', b'{"metric_gap": 1%b}' % (b"0" * 400)],
    ids=lambda content: repr(content[:20]),
)
def test_damaged_values_are_measured_again(finished, content):
    path = finished[1] / "plain/seed-1" / STORED
    good = path.read_bytes()
    path.write_bytes(content)
    now, before = again(finished)
    assert now == before
    assert path.read_bytes() == good


@pytest.mark.parametrize(
    "content",
    [
        *NO_TABLES,
        b'{"hardware": "a"}',
        b'{"hardware": "", "evenflow": "", "torch": "", "date": "", "side_by_side": 1e999}',
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_damaged_origin_is_that_of_this_moment(finished, content):
    path = finished[1] / "plain/seed-1" / ORIGIN
    good = path.read_bytes()
    path.write_bytes(content)
    now, before = again(finished)
    path.write_bytes(good)
    assert now == before


@pytest.mark.parametrize(
    "runs", [3, ["run"], [{}], [{"row": []}], [{"row": [], "seed": 1}], [{"row": "other", "seed": 1, "loss": "NAN"}]]
)
def test_damaged_runs_of_an_earlier_record_are_left_out(finished, runs):
    path = finished[1] / RECORD
    record = json.loads(path.read_bytes())
    kept = record["runs"]
    path.write_text(json.dumps(record | {"runs": runs}).replace('"NAN"', "NaN"), encoding="utf-8")
    again(finished)
    assert json.loads(path.read_bytes())["runs"] == kept


@pytest.mark.parametrize("content", NO_TABLES, ids=lambda content: repr(content[:20]))
def test_a_damaged_record_is_written_again(finished, content):
    path = finished[1] / RECORD
    kept = json.loads(path.read_bytes())["runs"]
    path.write_bytes(content)
    again(finished)
    assert json.loads(path.read_bytes())["runs"] == kept


def test_large_files_are_not_read(finished):
    """Reading them asked for as much memory as they claim to have."""
    for path in (finished[1] / RECORD, finished[1] / "plain/seed-1" / ORIGIN, finished[1] / "plain/seed-1" / STORED):
        good = path.read_bytes()
        os.truncate(path, 1 << 40)  # a hole: no disk is used
        now, before = again(finished)
        path.write_bytes(good)
        assert now == before


def test_a_large_recipe_is_refused(tmp_path):
    path = tmp_path / "table-1.toml"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(
        ValueError, match=r"^recipe table-1\.toml: cannot read '.*': it has 1,099,511,627,776 bytes, more"
    ):
        read(path)
