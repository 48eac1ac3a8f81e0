"""What the page says of each run, in words and table cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from evenflow.lab.report import reach
from evenflow.lab.report.numbers import duration, number
from evenflow.lab.report.record import Record
from evenflow.lab.report.svg import MARKERS, SERIES
from evenflow.lab.report.verdict import judge

METRIC_DIGITS = 4  # near one, shares of right answers differ in the fourth
# The markers of matplotlib, drawn for the legend: centre (16, 7).
MARKS = {
    "o": "M16 3.4a3.6 3.6 0 1 0 .01 0z",
    "s": "M12.6 3.6h6.8v6.8h-6.8z",
    "^": "M16 2.6l4.2 8h-8.4z",
    "D": "M16 2.2l4.8 4.8-4.8 4.8-4.8-4.8z",
    "v": "M16 11.4l4.2-8h-8.4z",
    "P": "M14.4 3h3.2v2.4H20v3.2h-2.4V11h-3.2V8.6H12V5.4h2.4z",
    "X": "M13.4 2.8L16 5.4l2.6-2.6 1.6 1.6L17.6 7l2.6 2.6-1.6 1.6L16 8.6l-2.6 2.6-1.6-1.6L14.4 7l-2.6-2.6z",
}


def card(index: int, run: Record, same: bool, tested: bool) -> dict[str, Any]:
    """What the page says of one run. `same`: the metric is the loss; `tested`: some run has a test result."""
    metric, loss = run.best("valid_metric"), run.final("loss")
    shown = (metric, f"best validation {run.metric_name}") if metric is not None else (loss, "last training loss")
    last = None if run.probe_norm is None else reach.sentence(run.probe_norm[-1])
    found = None if run.probe_norm is None else reach.measure(run.probe_norm[-1])
    test_loss, test_metric = run.test or (None, None)
    return {
        "label": run.label,
        "note": run.note,
        "colour": index % SERIES + 1,
        "mark": Markup('<path d="{}" fill="currentColor"/>').format(MARKS[MARKERS[index % len(MARKERS)]]),
        "verdict": judge(run),
        "headline": number(shown[0], METRIC_DIGITS),
        "headline_name": shown[1],
        "test": _test(run),
        "data_note": run.data_note,
        "parameters": "" if run.parameters is None else f"{run.parameters:,} trained parameters.",
        "reach": found.brief() if found else run.probe_gap or f"The gradient {last}.",
        "reach_caption": "" if last is None else f"After training, the gradient {last}.",
        "cells": [
            "–" if run.parameters is None else f"{run.parameters:,}",
            number(run.final("valid_loss")),
            number(run.best("valid_loss")),
            *([] if same else [number(value, METRIC_DIGITS) for value in (run.final("valid_metric"), metric)]),
            *([number(test_loss)] + ([] if same else [number(test_metric, METRIC_DIGITS)]) if tested else []),
            f"{run.updates:,}",
            duration(run.seconds),
        ],
    }


def _test(run: Record) -> str:
    if run.test is None:
        return ""
    loss, metric = run.test
    at = run.status.get("best_step")
    weights = f", with the weights of update {at:,}" if isinstance(at, int) else ""
    beside = "" if run.metric_is_loss else f", loss {number(loss)}"
    return f"Test {run.metric_name} {number(metric, METRIC_DIGITS)}{beside}{weights}."


def reach_rows(view: dict[str, Any], run: Record) -> list[dict[str, Any]]:
    """How far back the gradient reaches, at the first and at the last probe."""
    if run.probe_norm is None or run.probe_step is None:
        return []
    rows = []
    for which in (0, -1) if len(run.probe_step) > 1 else (0,):
        found = reach.measure(run.probe_norm[which])
        rows.append(
            {
                "run": view,
                "probe": f"update {int(run.probe_step[which]):,}",
                "steps": "–" if found is None else f"{found.steps:,} of {found.length - 1:,} steps",
                "ratio": "–" if found is None else number(found.ratio),
                "word": "not measurable" if found is None else found.word,
            }
        )
    return rows


def title(runs: Sequence[Record]) -> str:
    """Systems and tasks."""
    names = list(dict.fromkeys(run.system for run in runs))
    named = list(dict.fromkeys(run.task_name for run in runs))
    who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{who} on {' and '.join(named)}"


def lede(runs: Sequence[Record]) -> str:
    """The outcome in a sentence or two, with what there is to know about the data."""
    verdicts = [judge(run).word for run in runs]
    notes = dict.fromkeys(run.data_note for run in runs if run.data_note)
    known = []
    for note in notes:
        whose = [run.label for run in runs if run.data_note == note]
        known.append(f"Data{'' if len(whose) == len(runs) else ' of ' + ', '.join(whose)}: {note}.")
    return " ".join([_outcome(runs, verdicts), *known])


def _outcome(runs: Sequence[Record], verdicts: Sequence[str]) -> str:
    if len(runs) == 1:
        return {
            "Solved": "The run solved its task.",
            "Not solved": "The run did not solve its task.",
            "Diverged": "The run diverged.",
            "Failed": "The run failed.",
            "Unfinished": "The run is not finished yet.",
            "No verdict": "The run gives no verdict: nothing was validated against a task that evenflow knows.",
        }[verdicts[0]]
    groups = {word: [r.label for r, v in zip(runs, verdicts, strict=True) if v == word] for word in verdicts}
    solved = groups.pop("Solved", [])
    first = f"{len(solved)} of {len(runs)} runs solved the task: {', '.join(solved)}." if solved else ""
    rest = [f"{word}: {', '.join(labels)}." for word, labels in groups.items()]
    return " ".join([first or f"None of the {len(runs)} runs solved the task.", *rest])
