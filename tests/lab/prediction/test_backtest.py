from __future__ import annotations

import numpy as np
import pytest
from made_files import predictor_of, write_csv

from evenflow.lab import cli
from evenflow.lab.prediction import backtest_file
from evenflow.lab.training import train


def series(steps, seed=0):
    draw = np.random.RandomState(seed)
    return np.stack([100 + 20 * draw.randn(steps), -3 + 0.5 * draw.randn(steps)], -1).round(4)


@pytest.mark.parametrize(("length", "season"), [(None, 5), (6, None), (6, 3)])
def test_a_backtest_is_the_loop_over_its_origins(length, season, tmp_path):
    made, x, horizon = predictor_of("next", "every", length=length), series(40), 4
    result = backtest_file(made, write_csv(tmp_path / "a.csv", [x], named=False), horizon, season)
    before = season or 1
    origins = range(max(before, length or horizon), 40 - horizon + 1, horizon)
    errors = {"mae": [], "naive": [], "seasonal": []}
    for origin in origins:
        true = x[origin : origin + horizon]
        ahead = np.stack([x[origin - before + step % before] for step in range(horizon)])
        for name, found in (
            ("mae", made.forecast(x[None, :origin], horizon)[0]),
            ("naive", x[origin - 1]),
            ("seasonal", ahead),
        ):
            errors[name].append(abs(true - found))
    assert result.origins == len(origins)
    for column, name in enumerate(("ax", "ay")):
        row = result.errors[column]
        assert row["column"] == name
        for key, found in errors.items():
            assert row[key] == pytest.approx(np.mean(found, (0, 1))[column], rel=1e-5)
        scale = abs(x[before:] - x[:-before]).mean(0)[column]
        assert row["mase"] == pytest.approx(row["mae"] / scale, rel=1e-6)


def test_a_trained_forecaster_beats_the_naive_forecast(tmp_path, capsys):
    wave = 1000 + 300 * np.sin(np.arange(600) * 2 * np.pi / 12) + 20 * np.random.RandomState(0).randn(600)
    (tmp_path / "wave.csv").write_text("time,level\n" + "".join(f"{n},{x:.3f}\n" for n, x in enumerate(wave)))
    config = {
        "task": {"name": f"csv:{tmp_path / 'wave.csv'}", "length": 24, "stride": 5, "gap": True},
        "system": {"name": "gru", "hidden_size": 16},
        "training": {"steps": 150, "batch_size": 16, "lr": 0.02, "device": "cpu"},
    }
    train(config, tmp_path / "run", progress=False)
    options = ["--horizon", "6", "--season", "12", "-q"]
    with pytest.raises(SystemExit) as left:
        cli.main(["evaluate", str(tmp_path / "run"), str(tmp_path / "wave.csv"), *options])
    assert left.value.code == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "level" in line).split()
    mae, naive, seasonal, mase = map(float, row[1:])
    assert mae < naive / 3
    assert seasonal < naive / 3
    assert mase == pytest.approx(mae / np.abs(wave[12:] - wave[:-12]).mean(), rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        (
            "next",
            {"horizon": 50},
            r"file '.*a.csv' is too short for a backtest: a sequence needs 100 steps, 50 before .*",
        ),
        ("next", {"horizon": 0}, r"horizon must be a whole number of at least 1, got 0"),
        ("next", {"horizon": 2, "season": 0}, r"season must be a whole number of at least 1, got 0"),
        ("classification", {"horizon": 2}, r"horizon needs a model that predicts the next step, this one is for .*"),
    ],
)
def test_wrong_backtests(kind, options, sentence, tmp_path):
    readout = "every" if kind == "next" else "last"
    source = write_csv(tmp_path / "a.csv", [series(40)], named=False)
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        backtest_file(predictor_of(kind, readout), source, **options)
