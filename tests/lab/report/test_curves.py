from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import write_rows, write_run

from evenflow.lab.report import curves
from evenflow.lab.report.run_record import read_runs


def test_lines_end_where_the_loss_is_lost(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    write_rows(folder, {"step": 10, "loss": 0.3}, {"step": 20, "loss": 0.2}, {"step": 30, "loss": np.nan})
    panel = curves.train_loss(read_runs([folder]))
    assert panel.svg is not None
    assert panel.notes == ["sgornn: the training loss stops being a finite number at update 30."]
    assert "0.2 at update 20" in panel.alt


def test_a_run_without_validation_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    write_rows(folder, {"step": 10, "loss": 0.3})
    runs = read_runs([folder])
    assert curves.valid_loss(runs).svg is None
    assert curves.valid_loss(runs).notes == ["sgornn has no validation loss."]


def test_the_baseline_is_named_and_dashed(four: list[Path]) -> None:
    panel = curves.valid_loss(read_runs(four))
    assert panel.svg is not None
    assert "stroke-dasharray" in panel.svg
    assert "memoryless baseline at 0.167" in panel.alt


@pytest.mark.parametrize(("task", "log"), [("copy", False), ("adding", True)])
def test_a_share_of_right_answers_has_no_log_axis(tmp_path: Path, task: str, log: bool) -> None:
    folder = write_run(tmp_path / "a", task={"name": task, "length": 20})
    write_rows(folder, *({"step": s, "loss": 0.1, "valid_loss": 0.1, "valid_metric": 0.01 * s} for s in (1, 50, 99)))
    panel = curves.valid_metric(read_runs([folder]))
    assert panel.hover is not None
    assert panel.hover["log"] == log


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-320, 1e-30, 1e30], ids=lambda v: f"{v:g}")
def test_any_finite_loss_can_be_drawn(tmp_path: Path, value: float) -> None:
    folder = write_run(tmp_path / "a")
    write_rows(folder, *({"step": s, "loss": value, "valid_loss": value, "valid_metric": value} for s in (1, 2, 3)))
    assert curves.train_loss(read_runs([folder])).svg is not None
    assert curves.valid_metric(read_runs([folder])).svg is not None


def test_a_loss_beyond_all_axes_is_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    write_rows(folder, {"step": 1, "loss": 1e308})
    assert curves.train_loss(read_runs([folder])).notes == ["sgornn: no training loss is a finite number under 10³⁰."]
    write_rows(folder, {"step": 1, "loss": 1.0}, {"step": 2, "loss": 1e308}, {"step": 3, "loss": 1.0})
    panel = curves.train_loss(read_runs([folder]))
    assert panel.svg is not None
    assert panel.notes == ["sgornn: values over 10³⁰ are left out."]


def test_a_start_far_above_the_rest_does_not_flatten_the_plot(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    write_rows(folder, *({"step": s, "loss": 90.0 if s == 1 else 0.2 - s / 1000} for s in range(1, 101)))
    panel = curves.train_loss(read_runs([folder]))
    assert panel.svg is not None
    assert panel.notes == ["Values of the first updates, up to 90, lie above the plot."]
    labels = [float(text) for text in re.findall(r">([\d.]+)</text>", panel.svg)]
    # Ticks of the loss axis, which would otherwise stand between 0 and 90.
    assert sum(0.1 <= label <= 0.2 for label in labels) >= 3
