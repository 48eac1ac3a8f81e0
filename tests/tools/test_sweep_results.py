"""Published sweeps: taken from their folders when they are over, and a page that follows from the records alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from made_sweeps import OMITTED, point, write

import publish_results as published
from evenflow.lab.sweep import Axes, Rules, sweep
from publish_results import stored_sweep, sweep_page
from publish_results.__main__ import main
from publish_results.import_sweep import name_of

COMMITTED = Path(__file__).parents[2] / "docs" / "results"
OUT = point(lr=0.001, valid=[0.7], test=[0.71], state="out", updates=100, reason="not among the best 1 of round 1")
LINE = 300  # bytes of a point: a few hundred of them are to be read by people
PLACE = re.compile(r'"(?:/|~|[A-Z]:\\)')


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments)])
    return left.value.code


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "results"


def publish(into: Path, *places: Path) -> str:
    published.merge(places, into)
    published.write(into)
    return (into / sweep_page.FILE).read_text()


@pytest.mark.parametrize(
    ("task", "parameters", "name"),
    [
        ({"name": "har", "classes": 2}, None, "har"),
        ({"name": "har", "classes": 6}, None, "har-classes-6"),
        ({"name": "mnist", "order": "permuted", "width": 1}, 137000, "mnist-permuted-137000"),
        ({"name": "copy", "length": 2000, "convention": "factorized", "symbols": 8, "items": 10}, None, "copy-2000"),
        ({"name": "copy", "length": 100}, 2000, "copy-100-2000"),
        ({"name": "copy", "length": 2000}, 137000, "copy-2000-137000"),
        ({"name": "curriculum", "task": "copy", "length": 2000, "start": 10}, None, "curriculum-copy-2000"),
        ({"name": "csv", "file": "my motion.csv", "target": "activity"}, None, "csv-my-motion.csv-target-activity"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_name_tells_the_task_its_unusual_options_and_the_limit(task, parameters, name):
    assert name_of(task, parameters) == name


def test_a_page_shows_the_points_the_budget_and_what_made_them(tmp_path, into):
    wide = {**OMITTED, "parameters": 12345, "reason": "12,345 parameters, and the limit is 10,000"}
    odd = {**OMITTED, "parameters": None, "reason": "it cannot be made: 15 is odd"}
    lost = point(lr=1.0, valid=[0.1], test=[None], state="diverged", updates=7, reason="the loss became infinite")
    page = publish(
        into,
        write(tmp_path / "a", point(), OUT, lost, parameters=10000, omitted=[wide, odd], training={"clip_norm": 1.0}),
    )
    assert "## har-10000: har, classes 2" in page
    assert (
        "3 points, 3,000 updates in all: 3 to 100, then 1 to 1,000 updates each. "
        "2 seeds in the last round, 20 sequences a batch, at most 10,000 parameters."
    ) in page
    assert (
        "| map | cell | activation | hidden | parameters | lr | updates | "
        "validation accuracy (%) | test accuracy (%) |" in page
    )
    assert "| exponential | gated | relu | 128 | 9,000 | 0.01 | 1,000 | 92 ± 2.8 | 92 ± 1.4 |" in page
    assert "| exponential | gated | relu | 128 | 9,000 | 0.001 | 100 | 70 | – |" in page  # no test before the end
    assert "| 1 | 7 | diverged | – |" in page
    assert "- an H200, evenflow 0.1.0, torch 2.13.0, 2026-11-15: 1 min 15 s." in page
    assert "Tried: maps exponential; cells gated; activations relu; optimizers adam; lrs 0.01, 0.001; " in page
    assert "clip_norm 1.0; in the last round a linear rate." in page
    assert "- Diverged, 1 of 3 points: exponential gated relu, 128 units at 1." in page
    assert "- Left out, 1 model over the limit: svd gru own, 16 units (12,345 parameters)." in page
    assert "- Left out, 1 model (it cannot be made: 15 is odd): svd gru own, 16 units." in page


def test_the_page_has_the_ten_best_and_the_record_every_point(tmp_path, into):
    others = [point(lr=lr / 1000, valid=[0.5], test=[0.5], state="out") for lr in range(1, 40)]
    page = publish(into, write(tmp_path / "a", point(), *others))
    assert page.count("| exponential |") == sweep_page.BEST
    assert len(stored_sweep.read(into / "sweeps/har.json").points) == 40


def test_a_metric_that_is_no_share_is_shown_as_it_is_and_a_missing_test_is_said(tmp_path, into):
    made = point(valid=[0.012, 0.016], test=[None, None])
    page = publish(into, write(tmp_path / "a", made, task={"name": "adding", "length": 200}, judged_by="mse"))
    assert "| updates | validation mse |\n" in page
    assert "| 0.014 ± 0.0028 |" in page
    assert "The task has no test part." in page


def test_several_optimizers_have_a_column(tmp_path, into):
    page = publish(into, write(tmp_path / "a", point(), OUT | {"optimizer": "sgd"}))
    assert "| parameters | optimizer | lr |" in page
    assert "| 9,000 | sgd | 0.001 |" in page


def test_the_record_is_small_has_no_places_and_is_read_back_as_it_was(tmp_path, into):
    task = {"name": "csv", "file": "/home/someone/motion.csv", "data": "/home/someone/sets"}
    publish(into, write(tmp_path / "a", point(), OUT, task=task))
    path = into / "sweeps/csv-motion.csv.json"
    text = path.read_text()
    assert "someone" not in text
    assert not PLACE.search(text)
    assert all(len(line) < LINE for line in text.splitlines()[1:])
    assert stored_sweep.read(path).text() == text
    table = json.loads(text)
    assert table["request"]["training"] == {
        "batch_size": 20,
        "validate_every": 100,
        "checkpoint_every": 100,
    }  # what is not the usual
    assert table["points"][0]["test"] == [0.91, 0.93]
    assert "scores" not in text


def test_a_later_sweep_replaces_one_of_its_name_and_no_other(tmp_path, into):
    publish(into, write(tmp_path / "a", point()), write(tmp_path / "b", point(), parameters=10000))
    later = write(tmp_path / "c", point(test=[0.98, 0.98]), began="2026-11-16T10:00:00+00:00")
    page = publish(into, later)
    assert page.count("## har") == 2
    assert page.count("| 98 ± 0 |") == page.count("| 92 ± 1.4 |") == 1
    _, left = published.merge([tmp_path / "a"], into)
    assert left == ["Left out, sweep har of 2026-11-15T10:00:00+00:00: there is one of 2026-11-16T10:00:00+00:00."]
    assert publish(into, tmp_path) == page  # whatever the order of folders


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_a_sweep_that_is_not_over_is_left_out_with_a_sentence(tmp_path, into, capsys, state):
    folder = write(tmp_path / "runs/a", point(), state=state)
    assert command(tmp_path / "runs", "--into", into) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert f"Left out, sweep har in '{folder}': {state}, the same command goes on." in " ".join(said.split())
    assert not (into / "sweeps").exists()
    assert not (into / sweep_page.FILE).exists()
    assert sweep_page.FILE not in (into / "README.md").read_text()


def test_the_command_publishes_links_and_checks(tmp_path, into, capsys):
    write(tmp_path / "runs/a", point(), OUT)
    assert command(tmp_path / "runs", "--into", into) == 0
    assert "sweeps/har: 2 points, the best of them exponential gated relu, 128 units." in capsys.readouterr().out
    line = "| [har](sweeps.md) | exponential gated relu, 128 units | 2 | test accuracy (%) 92 ± 1.4 |"
    assert line in (into / "README.md").read_text()
    assert command("--into", into, "--check") == 0
    record = into / "sweeps/har.json"
    record.write_text(record.read_text().replace("[0.91, 0.93]", "[0.95, 0.97]"))
    capsys.readouterr()
    assert command("--into", into, "--check") == 1
    said = capsys.readouterr().err
    assert f"page {into / sweep_page.FILE} differs from its record" in said
    assert f"page {into / 'README.md'} differs" in said
    assert command("--into", into) == 0
    assert "| 96 ± 1.4 |" in (into / sweep_page.FILE).read_text()


def test_a_page_of_sweeps_that_are_gone_is_removed(tmp_path, into):
    publish(into, write(tmp_path / "a", point()))
    (into / "sweeps/har.json").unlink()
    assert published.differing(into) == [into / "README.md", into / sweep_page.FILE]
    published.write(into)
    assert not (into / sweep_page.FILE).exists()
    assert published.differing(into) == []


def broken(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "sweep.json").write_text(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: broken(f, '{"format": 1, '), "cannot be read: Expecting property name"),
        (lambda f: broken(f, "[]"), "cannot be read: it is no record of a sweep"),
        (lambda f: write(f, point(), format=7), "cannot be read: its format is 7, and 1 is known: sweep again"),
        (lambda f: write(f, point(), request={}), "cannot be read: it lacks 'task'"),
        (lambda f: write(f, {**point(), "scores": [{}]}), "cannot be read: it lacks 'valid_metric'"),
        (lambda f: write(f, point(), rounds=[]), "cannot be read: point exponential-gated-relu-128-adam-0.01 has no"),
        (lambda f: write(f), "cannot be read: it has no points"),
        (lambda f: write(f, point(), task={"name": "harr"}), "cannot be read: unknown task 'harr', did you mean"),
    ],
    ids=["cut off", "no table", "format", "no task", "half a score", "no rounds", "no points", "unknown task"],
)
def test_a_damaged_sweep_is_refused_in_one_sentence_before_anything_is_written(tmp_path, into, capsys, make, message):
    good = write(tmp_path / "good", point())
    make(tmp_path / "wrong")
    assert command(good, tmp_path / "wrong", "--into", into) == 2
    said = capsys.readouterr().err
    assert message in said
    assert str(tmp_path / "wrong" / "sweep.json") in said
    assert len(said.splitlines()) == 1
    assert not into.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read: "),
        ('{"format": 1, "name": "digits", "points": []}', "it is no record of sweep har in format 1"),
        ('{"format": 1, "name": "har", "points": [{"map": "svd"}]}', "cannot be read: "),
        ('{"format": 1, "name": "har", "points": []}', "it has no points"),
    ],
    ids=["cut off", "another sweep", "half a point", "no points"],
)
def test_a_damaged_committed_sweep_is_named(into, text, message):
    (into / "sweeps").mkdir(parents=True)
    (into / "sweeps/har.json").write_text(text)
    with pytest.raises(ValueError) as error:
        published.pages(into)
    assert "har.json" in str(error.value)
    assert message in str(error.value)


def test_a_real_sweep_is_published_whole(tmp_path, into):
    axes = Axes(maps=["exponential", "rotations"], cells=["elman"], activations=["relu"], hidden=[4, 5], lrs=[0.01])
    found = sweep(
        {"name": "adding", "length": 8},
        axes,
        Rules(updates=40, first=4, seeds=2, finalists=1),
        tmp_path / "sweep",
        training={"batch_size": 4, "validation_batches": 1},
        progress=False,
    )
    page = publish(into, tmp_path / "sweep")
    assert "## adding-8-units-4-5: adding, length 8" in page
    assert len(stored_sweep.read(into / "sweeps/adding-8-units-4-5.json").points) == len(found.standings) == 3
    best = found.best
    shown = next(line for line in page.splitlines() if line.startswith(f"| {best.point.map} |"))
    mean, _, spread = shown.split("|")[-2].partition("±")
    assert float(mean) == pytest.approx(best.valid_metric, rel=1e-3)
    assert float(spread) == pytest.approx(best.spread, rel=0.05)
    assert "- Left out, 1 model (it cannot be made: " in page
    assert "; validation_batches 1; " in page


def test_every_committed_sweep_names_what_made_it():
    for each in stored_sweep.read_all(COMMITTED):
        assert all((each.hardware, each.evenflow, each.torch, each.began, each.judged_by)), each.name
        assert each.seconds > 0
        assert each.updates > 0
        assert not PLACE.search(each.text())
        asked = (each.request[name] for name in ("task", "parameters", "hidden", "system"))
        assert each.name == name_of(*asked)
