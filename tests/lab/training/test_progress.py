from __future__ import annotations

import io

import pytest

from evenflow.lab.training import progress
from evenflow.lab.training.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_terminal(monkeypatch) -> Terminal:
    """Put in place inside the test, because pytest sets standard error anew after the fixtures."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_nothing_in_a_short_run(monkeypatch):
    terminal = a_terminal(monkeypatch)
    bar = ProgressBar(10)
    for step in range(10):
        bar.update(step)
    bar.close()
    assert terminal.getvalue() == ""


def test_a_bar_in_a_long_run(monkeypatch):
    terminal = a_terminal(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE", 0)
    monkeypatch.setattr(progress, "REFRESH", 0)
    bar = ProgressBar(10, start=4)
    bar.update(5, "loss 0.25")
    bar.close()
    assert "5/10" in terminal.getvalue()
    assert "loss 0.25" in terminal.getvalue()
    bar.update(6)
    bar.close()
    assert "6/10" not in terminal.getvalue()


@pytest.mark.parametrize("shown", [True, False], ids=["no terminal", "quiet"])
def test_quiet(shown, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0)
    stream = io.StringIO() if shown else Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    bar = ProgressBar(10, shown=shown)
    bar.update(5)
    bar.close()
    assert stream.getvalue() == ""
