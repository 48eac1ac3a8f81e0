"""Forecasts for files with inputs that are known ahead, from a trained run."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import evenflow
from evenflow.lab.data import table_blocks, table_file
from evenflow.lab.prediction import backtest_file, evaluate_file, predict_file
from evenflow.lab.training import Run, train

HORIZON, TOLD, DAYS = 4, 40, ("sunday", "weekday")
ROUNDING = 1e-4  # float32, summed in another order


def table(x: np.ndarray, columns: tuple[int, ...], order=range(5)) -> str:
    names = ("load", "rain", "day")
    rows = [
        ",".join([f"s{n}", *(DAYS[int(row[c])] if c == 2 else str(row[c]) for c in columns)])
        for n in order
        for row in x[n].tolist()
    ]
    return "\n".join([",".join(["sequence", *(names[c] for c in columns)]), *rows, ""])


@pytest.fixture(scope="module", params=[1, HORIZON], ids=["step by step", "at once"])
def trained(request, tmp_path_factory):
    """A run, the folder of its files, and the series ``(5, TOLD + HORIZON, 3)``."""
    folder = tmp_path_factory.mktemp("load")
    draw = np.random.RandomState(0)
    rain, day = draw.randn(5, TOLD + HORIZON), draw.randint(0, 2, (5, TOLD + HORIZON))
    x = np.stack([50 + 10 * rain + 20 * day + draw.randn(*rain.shape), rain, day], 2).round(3)
    (folder / "past.csv").write_text(table(x[:, :TOLD], (0, 1, 2)))
    (folder / "coming.csv").write_text(table(x[:, TOLD:], (2, 1), [4, 0, 2, 1, 3]))
    config = {
        "task": {"name": f"csv:{folder / 'past.csv'}", "known": "rain,day", "horizon": request.param},
        "system": {"name": "gru", "hidden_size": 12},
        "training": {"steps": 200, "batch_size": 4, "lr": 0.02, "validate_every": 50, "device": "cpu"},
    }
    train(config, folder / "run", progress=False)
    return evenflow.load(folder / "run"), folder, x


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(table_blocks, "BLOCK_ROWS", 3)
    monkeypatch.setattr(table_file, "ROWS", 2)


def test_forecasts_of_a_file_use_what_is_known(trained, tmp_path, small_blocks):
    made, folder, x = trained
    count = predict_file(made, folder / "past.csv", tmp_path / "out.csv", horizon=HORIZON, known=folder / "coming.csv")
    rows = list(csv.reader((tmp_path / "out.csv").open()))
    assert rows[0] == ["sequence", "ahead", "load"]
    assert count == len(rows) - 1 == 5 * HORIZON
    expected = made.forecast(x[:, :TOLD], HORIZON, x[:, TOLD:, 1:])[..., 0]
    np.testing.assert_allclose([float(row[2]) for row in rows[1:]], expected.ravel(), rtol=ROUNDING)
    assert abs(expected - x[:, TOLD:, 0]).mean() < 4  # without rain and day it would be more than 8


def test_next_steps_and_errors_of_a_file(trained, tmp_path, small_blocks):
    made, folder, x = trained
    count = predict_file(made, folder / "past.csv", tmp_path / "out.csv")
    rows = list(csv.reader((tmp_path / "out.csv").open()))[1:]
    assert count == 5 * (TOLD - 1)  # a row for each step but the first of a series
    assert [row[:2] for row in rows] == [[f"s{n}", str(step)] for n in range(5) for step in range(1, TOLD)]
    expected = made.predict(x[:, :TOLD])[:, :-1, 0]
    np.testing.assert_allclose([float(row[2]) for row in rows], expected.ravel(), rtol=ROUNDING)
    row = evaluate_file(made, folder / "past.csv").errors[0]
    assert row["mae"] == pytest.approx(abs(expected - x[:, 1:TOLD, 0]).mean(), rel=1e-4)
    backtest = backtest_file(made, folder / "past.csv", HORIZON)
    starts = range(HORIZON, TOLD - HORIZON + 1, HORIZON)
    found = [made.forecast(x[:, :s], HORIZON, x[:, s : s + HORIZON, 1:]) - x[:, s : s + HORIZON, :1] for s in starts]
    assert backtest.errors[0]["mae"] == pytest.approx(np.abs(found).mean(), rel=1e-4)


def test_the_page_forecasts_with_what_is_known(trained):
    made, folder, x = trained
    answers = Run(folder / "run").answers
    horizon = int(answers["forecast_horizon"])
    assert horizon == (HORIZON if made.schema.horizon > 1 else TOLD // 4)
    first, true = int(answers["forecast_first"]), answers["forecast_true"][:, 0]
    whole = next(each for each in x[:, :TOLD] if np.allclose(each[first : first + len(true), 0], true, rtol=1e-4))
    for start, found in zip(answers["forecast_starts"].tolist(), answers["forecast_predicted"], strict=True):
        known = whole[None, start : start + horizon, 1:]
        np.testing.assert_allclose(made.forecast(whole[None, :start], horizon, known)[0], found, rtol=ROUNDING)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sequence,rain\ns0,1\n", "it has no column 'day'"),
        ("sequence,rain,day\ns0,1,monday\n", "holds 'monday', and the values in training were sunday, weekday"),
        ("sequence,rain,day\n" + "s0,1,sunday\n" * 9, "it has 0 rows of sequence 's1', and the forecast needs 4"),
        ("sequence,rain,day\n" + "s0,1,sunday\n" * 3, "it has 3 rows of sequence 's0', and the forecast needs 4"),
        ("", "it is empty"),
    ],
)
def test_a_wrong_file_of_known_inputs_is_refused(text, message, trained, tmp_path):
    made, folder, _ = trained
    (tmp_path / "known.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        predict_file(made, folder / "past.csv", tmp_path / "out.csv", horizon=HORIZON, known=tmp_path / "known.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["known.csv"]
    with pytest.raises(ValueError, match="known goes with a horizon"):
        predict_file(made, folder / "past.csv", tmp_path / "out.csv", known=folder / "coming.csv")
