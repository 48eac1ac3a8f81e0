"""What a notebook shows: a result with its curves, and a progress bar."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from evenflow import SequenceModel, create, fit
from evenflow.lab.tasks import make
from evenflow.lab.training import Result, progress

QUICK: dict[str, Any] = {"steps": 12, "batch_size": 4, "validate_every": 4, "log_every": 2, "device": "cpu"}


def trained(name: str, **options: Any) -> Result:
    task = make(name, **options)
    return fit(SequenceModel(create("gru", task.input_size, 6), task.output_size, readout=task.readout), task, **QUICK)


def test_the_plot_shows_the_history() -> None:
    result = trained("temporal-order", length=8)
    loss, metric = result.plot().axes
    training, validation = loss.lines[:2]
    np.testing.assert_array_equal(training.get_ydata(), result.history["loss"])
    measured = ~np.isnan(result.history["valid_loss"])
    np.testing.assert_array_equal(validation.get_ydata(), result.history["valid_loss"][measured])
    np.testing.assert_array_equal(metric.lines[0].get_ydata(), result.history["valid_metric"][measured])
    assert metric.get_ylabel() == "validation accuracy"
    assert loss.lines[2].get_ydata()[0] == result.task.baseline


def test_a_metric_that_is_the_loss_is_drawn_once() -> None:
    assert len(trained("adding", length=8).plot().axes) == 1


def test_a_notebook_shows_the_numbers_and_the_curves() -> None:
    result = trained("temporal-order", length=8)
    shown = result._repr_html_()
    assert f"{result.best_metric:.4g} at update {result.best_step}" in shown
    assert result.task.criterion in shown
    assert shown.count("<svg") == 1
    assert "<?xml" not in shown


class ZMQInteractiveShell:
    """The shell of a kernel has this name."""


def test_progress_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, content: str) -> None:
            shown.append(content)

    def display(content: str, display_id: bool) -> Handle:
        assert display_id
        shown.append(content)
        return Handle()

    notebook, screen = ModuleType("IPython"), ModuleType("IPython.display")
    notebook.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    screen.display, screen.HTML = display, str  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", screen)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    bar = progress.ProgressBar(total=2000)
    for step in (1000, 2000):
        bar.update(step, "loss < 1")
    bar.close()
    assert shown[0] == '<progress value="1000" max="2000"></progress> 1,000/2,000 loss &lt; 1'
    assert shown[1].startswith('<progress value="2000"')
    assert shown[2:] == [""]  # it goes when the run is over
    notebook.get_ipython = lambda: None  # type: ignore[attr-defined]
    assert not progress.in_notebook()
