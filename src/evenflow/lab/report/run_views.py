"""What the page says about each run, in sentences and table cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evenflow.lab.report import gradient_reach
from evenflow.lab.report.numbers import duration, number
from evenflow.lab.report.plotting import legend_key
from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.report.run_verdict import judge
from evenflow.lab.report.svg import series_variable

METRIC_DIGITS = 4  # near 1, shares of right answers differ in the fourth digit
OUTCOMES = {
    "Solved": "The run solved its task.",
    "Not solved": "The run did not solve its task.",
    "Diverged": "The run diverged.",
    "Failed": "The run failed.",
    "Unfinished": "The run is not finished yet.",
    "No verdict": "The run gives no verdict: nothing was validated against a task that evenflow knows.",
}


Column = Callable[[RunRecord], str]


def result_columns(runs: Sequence[RunRecord]) -> dict[str, Column]:
    """The table of results: each heading with the function that gives the cell of a run.

    If the metric equals the loss, columns for the metric would repeat those for the loss, and are left out.
    """
    metrics, same = {run.metric_name for run in runs}, all(run.metric_is_loss for run in runs)
    metric = metrics.pop() if len(metrics) == 1 else "metric"
    columns: dict[str, Column] = {
        "Parameters": lambda run: "–" if run.parameters is None else f"{run.parameters:,}",
        "Final validation loss": lambda run: number(run.final("valid_loss")),
        "Lowest validation loss": lambda run: number(run.best_value("valid_loss")),
    }
    if not same:
        columns[f"Final {metric}"] = lambda run: number(run.final("valid_metric"), METRIC_DIGITS)
        columns[f"Best {metric}"] = lambda run: number(run.best_value("valid_metric"), METRIC_DIGITS)
    if any(run.test is not None for run in runs):
        columns["Test loss"] = lambda run: number(None if run.test is None else run.test[0])
        if not same:
            columns[f"Test {metric}"] = lambda run: number(None if run.test is None else run.test[1], METRIC_DIGITS)
    return columns | {"Updates": lambda run: f"{run.updates:,}", "Time": lambda run: duration(run.final("seconds"))}


def card(index: int, run: RunRecord, columns: Mapping[str, Column]) -> dict[str, Any]:
    """The texts of run number `index`: its card, and its cells below these columns of the table of results."""
    metric, loss = run.best_value("valid_metric"), run.final("loss")
    shown = (metric, f"best validation {run.metric_name}") if metric is not None else (loss, "last training loss")
    last = None if run.probe_norm is None else gradient_reach.sentence(run.probe_norm[-1])
    reach = None if run.probe_norm is None else gradient_reach.measure(run.probe_norm[-1])
    return {
        "label": run.label,
        "note": run.note,
        "colour": series_variable(index),
        "key": legend_key(index),
        "verdict": judge(run),
        "headline": number(shown[0], METRIC_DIGITS),
        "headline_name": shown[1],
        "test": _test(run),
        "data_note": run.data_note,
        "parameters": "" if run.parameters is None else f"{run.parameters:,} trained parameters.",
        "reach": reach.brief() if reach else run.probe_gap or f"The gradient {last}.",
        "reach_caption": "" if last is None else f"After training, the gradient {last}.",
        "cells": [cell(run) for cell in columns.values()],
    }


def _test(run: RunRecord) -> str:
    if run.test is None:
        return ""
    loss, metric = run.test
    at = run.status.get("best_step")
    weights = f", with the weights of update {at:,}" if isinstance(at, int) else ""
    beside = "" if run.metric_is_loss else f", loss {number(loss)}"
    return f"Test {run.metric_name} {number(metric, METRIC_DIGITS)}{beside}{weights}."


def reach_rows(view: dict[str, Any], run: RunRecord) -> list[dict[str, Any]]:
    """How far back the gradient reaches, at the first and at the last probe."""
    if run.probe_norm is None or run.probe_step is None:
        return []
    rows = []
    for which in (0, -1) if len(run.probe_step) > 1 else (0,):
        reach = gradient_reach.measure(run.probe_norm[which])
        rows.append(
            {
                "run": view,
                "probe": f"update {int(run.probe_step[which]):,}",
                "steps": "–" if reach is None else f"{reach.steps:,} of {reach.length - 1:,} steps",
                "smallest": "–" if reach is None else number(reach.smallest),
                "word": "not measurable" if reach is None else reach.word,
            }
        )
    return rows


def title(runs: Sequence[RunRecord]) -> str:
    """Systems and tasks."""
    names = list(dict.fromkeys(run.system for run in runs))
    systems = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{systems} on {' and '.join(dict.fromkeys(run.task_name for run in runs))}"


def lede(runs: Sequence[RunRecord]) -> str:
    """The outcome in a sentence or two, then the notes on the data."""
    sentences = [_outcome(runs, [judge(run).word for run in runs])]
    for note in dict.fromkeys(run.data_note for run in runs if run.data_note):
        labels = [run.label for run in runs if run.data_note == note]
        sentences.append(f"Data{'' if len(labels) == len(runs) else ' of ' + ', '.join(labels)}: {note}.")
    return " ".join(sentences)


def _outcome(runs: Sequence[RunRecord], verdicts: Sequence[str]) -> str:
    if len(runs) == 1:
        return OUTCOMES[verdicts[0]]
    groups = {word: [r.label for r, v in zip(runs, verdicts, strict=True) if v == word] for word in verdicts}
    solved = groups.pop("Solved", [])
    first = f"{len(solved)} of {len(runs)} runs solved the task: {', '.join(solved)}." if solved else ""
    rest = [f"{word}: {', '.join(labels)}." for word, labels in groups.items()]
    return " ".join([first or f"None of the {len(runs)} runs solved the task.", *rest])
