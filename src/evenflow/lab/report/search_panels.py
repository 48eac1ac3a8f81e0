"""Plots of a search: the best trial so far, which options matter, and the metric against each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from evenflow.lab.report.numbers import number
from evenflow.lab.report.plotting import WIDE_RANGE, Panel, count_axis, log_axis, plot
from evenflow.lab.report.svg import MUTED, series_colour, series_variable
from evenflow.lab.sweep import Range, SearchRecord
from evenflow.lab.sweep.study_record import TrialRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = ("finished", "pruned")  # diverged trials may have any value, running ones have none that is final
BAR = 26  # height of a bar and its gap


def search_panels(record: SearchRecord) -> list[Panel]:
    """All plots of a search."""
    names = dict.fromkeys(name for row in record.trials for name in row.drawn)
    return [history(record), importance(record), *(slice_panel(record, name) for name in names)]


def history(record: SearchRecord) -> Panel:
    """The metric of every trial by its number, and the best finished one so far."""
    panel = Panel("history", "Trials", quantity=record.metric_name)
    rows, finished = _shown(record.trials), [row for row in _shown(record.trials) if row.state == "finished"]
    if not finished:
        panel.notes.append("No trial is finished yet.")
        return panel
    best = (np.maximum if record.higher_is_better else np.minimum).accumulate([row.valid_metric for row in finished])
    x = np.array([row.number for row in finished])
    panel.alt = (
        f"{record.metric_name} of {len(rows)} trials by their number. The best is {number(best[0])} after trial "
        f"{x[0]} and {number(best[-1])} after trial {x[-1]}."
    )
    with plot(panel, "trial") as current:
        _points(current.axes, rows, [row.number for row in rows])
        current.axes.step(x, best, where="post", color=series_colour(0))
        current.read_out("best so far", series_variable(0), x, best)
        _metric_axis(current.axes, rows, record)
    return panel


def importance(record: SearchRecord) -> Panel:
    """The share of each option in what distinguishes good trials from others, as bars."""
    panel = Panel("importance", "Importance")
    shares = dict(reversed(list(record.importance.items())))  # bars are drawn from below
    if not shares:
        panel.notes.append("There are too few finished trials to tell which options matter.")
        return panel
    panel.alt = "Bars: " + ", ".join(f"{name} {share:.0%}" for name, share in record.importance.items()) + "."
    with plot(panel, None, height=90 + BAR * len(shares)) as current:
        current.axes.barh(list(shares), list(shares.values()), color=series_colour(0), height=0.6)
        current.axes.set_xlim(0, max(1e-9, *shares.values()) * 1.15)
        for place, share in enumerate(shares.values()):
            current.axes.annotate(
                f"{share:.0%}", (share, place), (4, 0), textcoords="offset points", va="center", color=MUTED
            )
        current.axes.grid(False, axis="y")
        current.axes.set_xlabel("share of the importance")
    return panel


def slice_panel(record: SearchRecord, name: str) -> Panel:
    """The metric of every trial against one option that was drawn for it."""
    panel = Panel(f"slice-{name.replace('_', '-')}", name, quantity=record.metric_name)
    rows = [row for row in _shown(record.trials) if name in row.drawn]
    if not rows:
        panel.notes.append(f"No trial with {name} is finished yet.")
        return panel
    values, ranges = [row.drawn[name] for row in rows], record.request.get("ranges", {})
    panel.alt = f"{record.metric_name} of {len(rows)} trials against {name}."
    with plot(panel, None) as current:
        if all(isinstance(value, int | float) for value in values):
            _points(current.axes, rows, values)
            if name in ranges and Range.read(name, ranges[name]).log:
                log_axis(current.axes, min(values) / 1.1, max(values) * 1.1, which="x")
            elif all(isinstance(value, int) for value in values):
                count_axis(current.axes, name)
        else:
            words = sorted({str(value) for value in values})
            _points(current.axes, rows, [words.index(str(value)) for value in values])
            current.axes.set_xticks(range(len(words)), words, rotation=20 if len(words) > 3 else 0)
            current.axes.set_xlim(-0.5, len(words) - 0.5)
        current.axes.set_xlabel(name)
        _metric_axis(current.axes, rows, record)
    return panel


def _shown(rows: Sequence[TrialRow]) -> list[TrialRow]:
    return [row for row in rows if row.state in SHOWN and math.isfinite(row.valid_metric)]


def _points(axes: Axes, rows: Sequence[TrialRow], x: Sequence[float]) -> None:
    """Finished trials as full marks, pruned ones as faint rings."""
    for state, colour, face in (("pruned", MUTED, "none"), ("finished", series_colour(0), series_colour(0))):
        here = [(at, row.valid_metric) for at, row in zip(x, rows, strict=True) if row.state == state]
        if here:
            across, up = zip(*here, strict=True)
            axes.plot(across, up, "o", markersize=5, color=colour, markerfacecolor=face)


def _metric_axis(axes: Axes, rows: Sequence[TrialRow], record: SearchRecord) -> None:
    """A log axis for errors over a wide range; a metric of which more is better is a share of right answers."""
    axes.set_ylabel(record.metric_name)
    values = [row.valid_metric for row in rows]
    low, high = min(values), max(values)
    if not record.higher_is_better and low > 0 and high / low > WIDE_RANGE:
        log_axis(axes, low / 1.25, high * 1.25)
