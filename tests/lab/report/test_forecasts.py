"""Forecasts on the page: the numbers of the run folder, and pages of damaged or runaway ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_runs import write_numbers, write_run
from test_page import Outline, scripts, words
from test_predictions import EVIL, table

from evenflow.lab.report import write_report
from evenflow.lab.report.numbers import number
from evenflow.lab.report.run_answers import DAMAGED

COLUMNS = ["level", "flow"]


def forecasts(season: int = 4, horizon: int = 6, **changed: Any) -> dict[str, Any]:
    """Forecasts from steps 16 and 22 of a series."""
    draw = np.random.RandomState(0)
    arrays = {
        "horizon": horizon, "season": season, "sequences": 7, "origins": 14, "sequence": 3, "first": 10,
        "errors": 10 * draw.rand(2, horizon, 3), "scale": np.array([2.0, 0.0]), "starts": np.array([16, 22]),
        "true": draw.randn(12 + horizon, 2), "predicted": draw.randn(2, horizon, 2),
    }  # fmt: skip
    return {f"forecast_{name}": value for name, value in (arrays | changed).items()}


def write(folder: Path, columns: list[str] = COLUMNS, kind: str = "next", **arrays: Any) -> Path:
    width = len(columns)
    return write_numbers(write_run(folder), columns, np.ones((width, 3)), np.ones((3, 2, width)), 3, kind, **arrays)


@pytest.mark.parametrize("season", [1, 4])
def test_the_table_has_the_errors_of_the_folder(season: int, tmp_path: Path) -> None:
    arrays = forecasts(season)
    page = write_report([write(tmp_path / "a", **arrays)]).read_text()
    rows = table(page, "Forecast errors")
    seasonal = ["Seasonal naive"] if season > 1 else []
    assert rows[0] == ["Column", "Steps ahead", "Mean absolute error", "Naive", *seasonal, "MASE"]
    expected = []
    for column, errors, scale in zip(COLUMNS, arrays["forecast_errors"], arrays["forecast_scale"], strict=True):
        for steps, each in [(str(n), errors[n - 1]) for n in (1, 2, 3, 6)] + [("1 to 6", errors.mean(0))]:
            mase = number(each[0] / scale) if scale else "–"
            expected.append([column, steps, *(number(value) for value in each[: 2 + len(seasonal)]), mase])
    assert rows[1:] == expected
    text = words(page)
    assert "14 forecasts of 6 steps in 7 sequences" in text
    assert "forecasts a file from other steps, so its numbers differ" in text
    assert ("repeats the last 4 steps" in text) == (season > 1)


def test_the_fan_is_drawn_over_the_truth(tmp_path: Path) -> None:
    arrays = forecasts()
    page = write_report([write(tmp_path / "a", **arrays)]).read_text()
    labels = [a.get("aria-label") or "" for a in Outline(page).of("svg")]
    assert "flow in steps 11 to 28 of sequence 4 of the validation part, and 2 forecasts of 6 steps." in labels
    plots = json.loads(scripts(page)[0])
    for place in range(2):
        series = plots[f"forecast-0-{place}"]["series"]
        assert [each["name"] for each in series] == ["true", "forecast"]


def test_runs_without_forecasts_have_no_such_part(tmp_path: Path) -> None:
    old = write_report([write(tmp_path / "old")]).read_text()
    assert "Forecast" not in old
    both = write_report([write(tmp_path / "a", **forecasts()), tmp_path / "old"], tmp_path / "both.html").read_text()
    assert both.count('id="forecast-0-0"') == 1
    assert 'id="forecast-1-0"' not in both


def test_the_first_of_many_columns(tmp_path: Path) -> None:
    text = words(write_report([write(tmp_path / "a", ["a", "b", "c", "d"], **forecasts())]).read_text())
    assert "Shown are the first 2 of 4 columns." in text


@pytest.mark.parametrize("value", [0.0, 1e30, np.nan, np.inf])
def test_any_forecasts_make_a_page(value: float, tmp_path: Path) -> None:
    found, errors = np.full((2, 6, 2), value), np.full((2, 6, 3), value)
    folder = write(tmp_path / "a", **forecasts(predicted=found, errors=errors))
    text = words(write_report([folder]).read_text())
    assert ("Forecasts beyond the figure are cut off." in text) == (value == 1e30)
    assert ("Forecasts that are not finite are left out." in text) == (not np.isfinite(value))
    level = write(tmp_path / "b", **forecasts(true=np.full((18, 2), value)))
    assert "Forecast" in words(write_report([level]).read_text())


def test_hostile_names_are_text(tmp_path: Path) -> None:
    outline = Outline(write_report([write(tmp_path / "a", [EVIL, "b"], **forecasts())]).read_text())
    assert len(outline.of("script")) == 2
    assert any(EVIL in (a.get("aria-label") or "") for a in outline.of("svg"))


@pytest.mark.parametrize(
    "changed",
    [
        {"errors": np.ones((2, 5, 3))},
        {"predicted": np.ones((2, 6, 1))},
        {"true": np.ones((17, 2))},
        {"starts": np.array([], int)},
        {"starts": np.array([10, 22])},
        {"season": 0},
        {"scale": np.array(["x", "y"])},
    ],
)
def test_damaged_forecasts_give_a_sentence(changed: dict[str, Any], tmp_path: Path) -> None:
    assert DAMAGED in words(write_report([write(tmp_path / "a", **forecasts(**changed))]).read_text())


def test_forecasts_of_another_kind_or_of_more_columns_are_damaged(tmp_path: Path) -> None:
    assert DAMAGED in words(write_report([write(tmp_path / "a", ["level"], **forecasts())]).read_text())
    folder = write(tmp_path / "b", kind="regression", **forecasts())
    assert DAMAGED in words(write_report([folder]).read_text())
