"""The page of a recipe: table, figures and notes in one file that needs nothing else."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_recipes import made

from evenflow.figures import COLOURS
from evenflow.lab.recipes import load, reproduce
from evenflow.lab.recipes.recipe_curves import CURVES
from evenflow.lab.recipes.recipe_figures import FIGURES, recipe_panels
from evenflow.lab.recipes.recipe_legend import caption, legend
from evenflow.lab.recipes.recipe_table import reproduction_table, show_reproduction
from evenflow.lab.report import write_figures
from evenflow.lab.report.result_table import tex
from evenflow.lab.training import NonFiniteLoss
from evenflow.lab.training.loop import Loop


def page(done) -> str:
    return Path(done.page).read_text("utf-8")


def test_the_page_holds_table_figure_and_notes_and_loads_nothing(tmp_path):
    done = reproduce(made(figures=["metric", "loss", "train-loss", "gap", "dots"]), folder=tmp_path, progress=False)
    text = page(done)
    for part in ("A made table", "plain", "orthogonal", "0.1 ± 0.01", "too small to compare", "made/table-1"):
        assert part in text
    assert "A choice that was left open." in text
    assert "Quick: 4 updates." in text
    assert text.count("<svg viewBox") >= 5
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    assert not re.search(r"<script|<link|src=\"(?!data:)|url\((?!#)", text)


def test_the_table_and_the_figures_for_a_paper(tmp_path):
    done = reproduce(made(figures=["metric", "loss", "dots"]), "full", folder=tmp_path, progress=False)
    results = reproduction_table(done)
    latex = results.to_text("latex")
    cell = done.cells["plain", "error"]
    assert tex(cell.measured_text()) in latex
    assert tex(cell.published_text()) in latex
    (row,) = [
        r for r in csv.DictReader(io.StringIO(results.to_text("csv"))) if (r["Row"], r["What"]) == ("plain", "error")
    ]
    assert float(row["Measured"]) == pytest.approx(cell.mean)
    assert float(row["Published"]) == cell.target
    labels = {entry["index"]: entry["label"] for entry in legend(done)}
    paths = write_figures(done.page, recipe_panels(done), "pdf", labels)
    assert {path.name for path in paths} == {"report-metric-0.pdf", "report-loss-0.pdf", "report-dots.pdf"}
    assert all(b"/FontFile2" in path.read_bytes() for path in paths)
    svg = write_figures(done.page, recipe_panels(done), "svg", labels)[0].read_text("utf-8")
    assert COLOURS[0] in svg
    assert "var(--" not in svg


def test_a_seed_without_a_number_is_told_beside_the_mean_of_the_others(tmp_path, monkeypatch, capsys):
    update = Loop.update

    def lost(loop):
        if loop.settings.seed == 2:
            raise NonFiniteLoss("the loss became infinite or not a number")
        update(loop)

    monkeypatch.setattr(Loop, "update", lost)
    done = reproduce(made(), "full", folder=tmp_path, rows=["plain"], progress=False)
    cell = done.cells["plain", "error"]
    assert (len(cell.values), cell.gaps, cell.verdict_text()) == (
        1,
        ["diverged"],
        "too noisy to tell: 1 of 2 seeds diverged",
    )
    show_reproduction(done)
    told = f"{cell.measured_text()}; 1 without a number"
    assert told in page(done)
    assert told in capsys.readouterr().out
    assert done.cells["plain", "parameters"].missing_text() == ""


def test_a_name_is_text_and_never_markup(tmp_path):
    rows = [{"label": "<b>bold</b>", "system": {"name": "rnn"}}]
    text = page(reproduce(made(rows=rows, ordering=[], seeds=[1]), folder=tmp_path, progress=False))
    assert "<b>bold</b>" not in text
    assert "&lt;b&gt;bold" in text


def test_probed_figures_are_drawn(tmp_path):
    recipe = made(figures=["heat", "spectrum", "first-step", "margin", "jacobian"], seeds=[1],
                  columns=[{"name": "ratio", "measure": "jacobian_ratio"}, {"name": "norm", "measure": "jacobian_norm"},
                           {"name": "margin", "measure": "spectral_margin"},
                           {"name": "flow", "measure": "gradient_ratio"}],
                  rows=[{"label": "orthogonal", "system": {"name": "urnn"}, "training": {"probe_every": 2}}],
                  ordering=[])  # fmt: skip
    done = reproduce(recipe, folder=tmp_path, progress=False)
    text = page(done)
    assert all(f'id="{name}' in text for name in ("heat-0", "spectrum-0", "first-step-0", "margin-0", "jacobian-0"))
    # |x| and an orthogonal matrix: the Jacobian keeps its norm, the root of the eight units.
    assert done.cells["orthogonal", "ratio"].mean == pytest.approx(1, abs=1e-5)
    assert done.cells["orthogonal", "norm"].mean == pytest.approx(8**0.5, rel=1e-5)
    assert done.cells["orthogonal", "margin"].mean < 1e-5


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("sgornn/table-1", "Dashed: the best guess without memory."),
        ("sgornn/table-2", "Stars: published numbers."),
        ("urnn/figure-4", "Dashed: the bounds that Theorem 1 allows."),
        ("factorized/figure-4", ""),
    ],
)
def test_the_caption_tells_of_what_is_drawn_alone(address, told):
    assert caption(load(address)) == told


def test_lines_against_a_number_have_one_line_for_each_system(tmp_path):
    rows = [{"label": f"{d} deep", "line": "mlp", "x": d, "system": {"name": "mlp", "depth": d}} for d in (1, 2)]
    recipe = made(rows=rows, ordering=[], seeds=[1], figures=["lines"])
    assert "Line plot of error by depth. mlp: " in page(reproduce(recipe, folder=tmp_path, progress=False))


@pytest.mark.parametrize(
    ("task", "title", "logs"), [("copy", "Validation accuracy", 0), ("adding", "Validation mse", 1)]
)
def test_the_metric_has_its_name_and_a_share_of_right_answers_no_log_axis(tmp_path, monkeypatch, task, title, logs):
    wide = replace(CURVES["metric"], read=lambda _: (np.arange(3.0), np.array([0.01, 0.5, 1.0])))
    monkeypatch.setitem(CURVES, "metric", wide)
    called = []
    monkeypatch.setattr("evenflow.lab.recipes.recipe_figures.log_axis", lambda *given, **options: called.append(given))
    recipe = made(task={"name": task, "length": 10}, figures=["metric"], seeds=[1])
    assert title in page(reproduce(recipe, folder=tmp_path, progress=False))
    assert len(called) == logs


def test_a_figure_of_nothing_says_so(tmp_path):
    recipe = made(task={"name": "mnist", "width": 28}, figures=[name for name in FIGURES if name != "components"])
    text = page(reproduce(recipe, folder=tmp_path / "runs", data=str(tmp_path), progress=False))
    assert text.count("<svg viewBox") == 0
    assert "nothing to draw" in text


def test_the_temporal_components_are_drawn_without_training(tmp_path):
    done = reproduce(load("galvan/figure-3.1"), folder=tmp_path, rows=["radius 0.8", "radius 1.2"], progress=False)
    assert 'id="components-0-figure"' in page(done)
    assert (
        done.cells["radius 0.8", "log10(first / last component)"].mean
        < done.cells["radius 1.2", "log10(first / last component)"].mean
    )


def test_a_sentence_is_measured_shown_and_not_judged(tmp_path, small_data):
    recipe = made(task={"name": "ptb-words", "length": 5, "embedding": 4}, seeds=[1], ordering=[], figures=[],
                  columns=[{"name": "sentence", "measure": "sentence", "better": "same"}],
                  rows=[{"label": "plain", "system": {"name": "rnn"},
                         "published": {"sentence": "this talk"}}])  # fmt: skip
    done = reproduce(recipe, folder=tmp_path, data=str(small_data), progress=False)
    cell = done.cells["plain", "sentence"]
    assert isinstance(cell.values[0], str)
    assert cell.verdict_text() == "not comparable: the document gives words"
