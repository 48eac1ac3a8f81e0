"""The page of a search: importance, slices and the trials."""

from __future__ import annotations

import html
import math
import re

import pytest

from evenflow.lab.report import write_search_page
from evenflow.lab.report.search_page import render_search
from evenflow.lab.report.search_panels import importance, search_panels, slice_panel
from evenflow.lab.sweep import SearchRecord
from evenflow.lab.sweep.study_record import TrialRow

REQUEST = {"task": {"name": "adding"}, "ranges": {"lr": "0.0001:0.1", "margin": "0.01:0.05", "hidden": "4:8"}}


def row(number: int, state: str = "finished", metric: float = 0.5, **drawn: object) -> TrialRow:
    given = {"lr": 10.0 ** (-1 - number / 4), "margin": 0.01 + number / 500, "hidden": 4 + number % 4, "map": "svd"}
    return TrialRow(number, state, "", given | drawn, 4, 41, 16 if state == "finished" else 4, metric)


def record(*rows: TrialRow, importance: dict[str, float] | None = None, higher: bool = False) -> SearchRecord:
    return SearchRecord(REQUEST, "finished", "accuracy" if higher else "mse", higher, rows, importance or {})


TRIALS = (
    *(row(number, metric=0.5 / (number + 1)) for number in range(8)),
    row(8, "pruned", 2.0, map="exponential"),
    row(9, "diverged", math.nan),
)
SHARES = {"lr": 0.75, "margin": 0.25}


def test_the_page_shows_importance_slices_and_trials():
    page = render_search(record(*TRIALS, importance=SHARES))
    text = html.unescape(page)
    for key in ("history", "importance", "slice-lr", "slice-margin", "slice-hidden", "slice-map"):
        assert f'<figure id="{key}-figure">' in page
    assert "Bars: lr 75%, margin 25%." in text
    assert "10 trials (8 finished, 1 pruned, 1 diverged), 136 updates. The best mse on the validation part is" in text
    rows = re.findall(r'<th scope="row">(\d+)</th>', page)
    assert [int(number) for number in rows] == [7, 6, 5, 4, 3, 2, 1, 0, 8, 9]


def test_marks_are_where_the_trials_are():
    """Nine trials have a number to draw: eight full marks and one ring in each slice."""
    for panel in search_panels(record(*TRIALS, importance=SHARES))[2:]:
        assert "9 trials against" in panel.alt
        assert panel.svg.count("<use ") >= 9


def test_a_line_of_the_best_so_far_rises_where_higher_is_better():
    accuracies = [0.5, 0.4, 0.9, 0.7]
    panel = search_panels(record(*(row(i, metric=value) for i, value in enumerate(accuracies)), higher=True))[0]
    assert "The best is 0.5 after trial 0 and 0.9 after trial 3." in panel.alt
    falling = search_panels(record(*(row(i, metric=value) for i, value in enumerate(accuracies))))[0]
    assert "The best is 0.5 after trial 0 and 0.4 after trial 3." in falling.alt


def test_without_finished_trials_there_are_sentences():
    empty = record(row(0, "diverged", math.nan))
    assert [panel.svg for panel in search_panels(empty)] == [None] * 6
    assert importance(empty).notes == ["There are too few finished trials to tell which options matter."]
    assert "1 trials (1 diverged), 4 updates." in render_search(empty)
    assert slice_panel(empty, "lr").notes == ["No trial with lr is finished yet."]


def test_text_of_a_record_is_no_markup():
    page = render_search(record(row(0, map="<script>alert(1)</script>"), importance={"<b>": 1.0}))
    assert "<script>alert" not in page
    assert "<b>" not in page


def test_it_is_written_beside_the_record(tmp_path):
    with pytest.raises(ValueError, match=r"holds no search: it has no study\.json$"):
        write_search_page(tmp_path)
    record(*TRIALS, importance=SHARES).write(tmp_path, "cpu")
    assert write_search_page(tmp_path) == tmp_path / "report.html"
    assert (tmp_path / "report.html").read_text() == render_search(SearchRecord.read(tmp_path))
