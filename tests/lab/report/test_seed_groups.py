"""Seeds of one config as one entry: means and bands in plots, standard errors in tables, the same in every format."""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import STEPS, write_rows, write_run

from evenflow.figures import COLOURS, FORMATS
from evenflow.lab.report import curves, read_groups, write_figures, write_report, write_table
from evenflow.lab.report.profiles import profiles
from evenflow.lab.report.result_table import ResultCell, ResultTable, result_table, tex
from evenflow.lab.report.run_verdict import judge
from evenflow.lab.report.seed_curves import mean_curve

GOOD, BAD = (0.00050, 0.00055, 0.00060), (0.0030, 0.0032, 0.0035)  # the last losses of the seeds


@pytest.fixture
def six(tmp_path: Path) -> list[Path]:
    """Three seeds of two systems; those of the second are clearly worse and do not solve the task."""
    return [
        write_run(tmp_path / f"{system}-{seed}", system, end=end, seed=seed)
        for system, ends in (("sgornn", GOOD), ("rnn", BAD))
        for seed, end in enumerate(ends)
    ]


def last_losses(folders: list[Path]) -> list[float]:
    return [run.best_value("valid_loss") for run in read_groups(folders)[0].seeds]


def test_runs_that_differ_in_their_seed_alone_are_one_entry(six: list[Path], tmp_path: Path) -> None:
    first, second = read_groups(six)
    assert [first.label, second.label] == ["sgornn", "rnn"]
    assert [seed.folder for seed in first.seeds] == six[:3]
    other = write_run(tmp_path / "other", training={"lr": 0.1}, seed=1)
    assert [len(run.seeds) for run in read_groups([*six[:2], other])] == [2, 1]
    assert [len(run.seeds) for run in read_groups([six[0], six[0]])] == [1, 1]  # the same run twice
    labels = ["mine"] * 3 + ["theirs"] * 3
    assert [run.label for run in read_groups(six, labels=labels)] == ["mine", "theirs"]


@pytest.mark.parametrize("beside", [False, True])
def test_some_seeds_solve_the_task(beside: bool, six: list[Path], tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"mixed-{n}", "lstm", end=end, seed=n) for n, end in enumerate((0.0005, 0.003))]
    page = tmp_path / "page.html"
    write_report([*folders, *(six[3:] if beside else [])], page)
    sentence = "1 of 2 seeds solved the task: lstm. Not solved: rnn." if beside else "1 of 2 seeds solved the task."
    assert sentence in page.read_text(encoding="utf-8")


def test_models_that_no_config_describes_stay_apart(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"own-{seed}", seed=seed) for seed in range(2)]
    for folder in folders:
        text = (folder / "config.toml").read_text(encoding="utf-8")
        (folder / "config.toml").write_text(text.replace("[system]", "[other]"), encoding="utf-8")
    assert [len(run.seeds) for run in read_groups(folders)] == [1, 1]


def test_the_mean_of_a_curve_and_its_band() -> None:
    steps = np.arange(10, 60, 10)
    curves = [(steps, np.array([5.0, 4, 3, 2, 1])), (steps[:4], np.array([7.0, 4, 5, 2]))]
    found = mean_curve(curves)
    assert found.step.tolist() == [10, 20, 30, 40]  # as far as both go
    assert found.mean.tolist() == [6, 4, 4, 2]
    np.testing.assert_allclose(found.high - found.mean, [1, 0, 1, 0])  # the deviation √2 over √2 seeds
    np.testing.assert_allclose(found.mean - found.low, [1, 0, 1, 0])
    wide = mean_curve([(steps, np.full(5, 1e-6)), (steps, np.full(5, 1.0)), (steps, np.full(5, 1e-6))])
    assert (wide.low > 0).all()  # a logarithmic axis has no zero


def test_the_page_shows_means(six: list[Path], tmp_path: Path) -> None:
    page = write_report(six, tmp_path / "page.html").read_text(encoding="utf-8")
    losses = last_losses(six[:3])
    error = np.std(losses, ddof=1) / math.sqrt(3)
    assert f"{np.mean(losses):.6f} ± {error:.6f}" in page
    assert page.count('class="card"') == 2
    assert "3 seeds: 3 solved." in page
    assert "Welch&#39;s t-test" in page
    assert "the band one standard error" in re.sub(r"\s+", " ", page)
    assert all(folder.name in page for folder in six)  # where the numbers come from


def test_bands_enclose_the_mean(six: list[Path]) -> None:
    runs = read_groups(six)
    panel = curves.valid_loss(runs)
    assert panel.figure is not None
    bands = panel.figure.axes[0].collections
    assert len(bands) == 2
    line = panel.figure.axes[0].lines[0].get_ydata()
    path = bands[0].get_paths()[0].vertices
    at_end = path[path[:, 0] == STEPS][:, 1]
    seeds = [run.final("valid_loss") for run in runs[0].seeds]
    error = np.std(seeds, ddof=1) / math.sqrt(3)
    assert line[-1] == pytest.approx(np.mean(seeds))
    assert at_end.min() == pytest.approx(np.mean(seeds) - error)
    assert at_end.max() == pytest.approx(np.mean(seeds) + error)
    assert len(profiles(runs)[1].figure.axes[0].collections) == 2  # type: ignore[union-attr]


def test_a_seed_that_diverged_is_named_and_left_out(six: list[Path]) -> None:
    write_rows(six[1], {"step": 10, "loss": 1.0, "valid_loss": 1.0}, {"step": 20, "loss": np.nan})
    runs = read_groups(six)
    notes = " ".join(curves.train_loss(runs).notes)
    assert "sgornn, seed 1: the training loss stops being a finite number at update 20." in notes
    assert "sgornn: the mean is that of 2 of 3 seeds." in notes
    assert judge(runs[0]).word == "2 of 3 solved"
    assert judge(runs[0]).tone == "bad"


def test_the_table_marks_what_differs_by_more_than_chance(six: list[Path]) -> None:
    table = result_table(read_groups(six))
    column = table.headings.index("Lowest validation loss")
    good, bad = (row[column] for row in table.rows)
    assert (good.best, good.marked) == (True, False)
    assert (bad.best, bad.marked) == (False, True)
    assert "±" in good.text
    assert any("Welch" in note for note in table.notes)
    alone = result_table(read_groups(six[:1]))
    assert "±" not in "".join(cell.text for cell in alone.rows[0])
    assert alone.notes == ()


def test_every_format_holds_the_same_numbers(six: list[Path]) -> None:
    table = result_table(read_groups(six))
    (first, second) = csv.DictReader(io.StringIO(table.to_text("csv")))
    losses = last_losses(six[:3])
    assert float(first["Lowest validation loss"]) == pytest.approx(np.mean(losses))
    assert float(first["Lowest validation loss standard error"]) == pytest.approx(np.std(losses, ddof=1) / math.sqrt(3))
    assert float(second["Lowest validation loss p"]) < 0.05
    assert first["Lowest validation loss p"] == ""
    markdown, latex = table.to_text("markdown"), table.to_text("latex")
    shown = table.rows[0][table.headings.index("Lowest validation loss")].text
    assert f"| {shown} |" in markdown
    assert "\\*" in markdown
    assert rf"\textbf{{{shown.replace('±', '$' + chr(92) + 'pm$')}}}" in latex
    assert "$^{*}$" in latex
    assert latex.count(r" \\") == 3
    assert all(line.count("&") == len(table.headings) - 1 for line in latex.splitlines() if line.endswith(r" \\"))


def test_latex_and_markdown_escape() -> None:
    assert tex("50 % of a_b & 3.2 × 10⁻⁹ ± 1") == r"50 \% of a\_b \& 3.2 $\times$ 10$^{-9}$ $\pm$ 1"
    table = ResultTable(("a|b",), ((ResultCell("x|y"),),))
    assert table.to_text("markdown").splitlines()[2] == r"| x\|y |"
    with pytest.raises(ValueError, match=r"^table must be one of latex, csv, markdown, got 'tex'$"):
        table.to_text("tex")


@pytest.mark.parametrize("kind", FORMATS)
def test_figures_for_print(kind: str, six: list[Path], tmp_path: Path) -> None:
    runs = read_groups(six)
    paths = write_figures(tmp_path / "page.html", [curves.valid_loss(runs)], kind, {0: "sgornn", 1: "rnn"})
    assert [path.name for path in paths] == [f"page-valid-loss.{kind}"]
    content = paths[0].read_bytes()
    if kind == "pdf":
        assert b"/FontFile2" in content
        assert b"/Type3" not in content
    if kind == "svg":
        text = content.decode()
        assert COLOURS[0] in text
        assert COLOURS[1] in text
        assert not re.search("#0[12]0[01]", text)  # the colours that stand for those of a page
        assert "var(--" not in text


def test_the_table_is_a_file_beside_the_page(six: list[Path], tmp_path: Path) -> None:
    table = result_table(read_groups(six))
    for kind, name in (("latex", "page.tex"), ("csv", "page.csv"), ("markdown", "page.md")):
        path = write_table(tmp_path / "page.html", table, kind)
        assert path == tmp_path / name
        assert path.read_text(encoding="utf-8") == table.to_text(kind)
