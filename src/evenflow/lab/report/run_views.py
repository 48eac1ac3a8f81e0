"""What the page says about each run, in sentences and table cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from evenflow.lab.report import gradient_reach
from evenflow.lab.report.numbers import number
from evenflow.lab.report.plotting import legend_key
from evenflow.lab.report.result_table import METRIC_DIGITS, ResultColumn
from evenflow.lab.report.run_record import RunRecord
from evenflow.lab.report.run_verdict import judge
from evenflow.lab.report.svg import series_variable

OUTCOMES = {
    "Solved": "The run solved its task.",
    "Not solved": "The run did not solve its task.",
    "Diverged": "The run diverged.",
    "Failed": "The run failed.",
    "Unfinished": "The run is not finished yet.",
    "No verdict": "The run gives no verdict: nothing was validated against a task that evenflow knows.",
}


def card(index: int, run: RunRecord, cells: Sequence[str]) -> dict[str, Any]:
    """The texts of run number `index`: its card, and its cells of the table of results."""
    measured = any(seed.best_value("valid_metric") is not None for seed in run.seeds)
    name = f"best validation {run.metric_name}" if measured else "last training loss"
    headline = across_seeds(run, lambda seed: seed.best_value("valid_metric") if measured else seed.final("loss"))
    last = None if run.probe_norm is None else gradient_reach.sentence(run.probe_norm[-1])
    reach = None if run.probe_norm is None else gradient_reach.measure(run.probe_norm[-1])
    return {
        "label": run.label,
        "note": " ".join(part for part in (run.note, _seeds(run)) if part),
        "colour": series_variable(index),
        "key": legend_key(index),
        "verdict": judge(run),
        "headline": headline,
        "headline_name": name + (f", mean of {len(run.seeds)} seeds" if len(run.seeds) > 1 else ""),
        "test": _test(run),
        "data_note": run.data_note,
        "parameters": "" if run.parameters is None else f"{run.parameters:,} trained parameters.",
        "reach": reach.brief() if reach else run.probe_gap or f"The gradient {last}.",
        "reach_caption": "" if last is None else f"After training, the gradient {last}.",
        "cells": cells,
    }


def across_seeds(run: RunRecord, read: Callable[[RunRecord], float | None]) -> str:
    """A number of a run, or its mean over the seeds with the standard error."""
    return str(ResultColumn("", read, lambda value: number(value, METRIC_DIGITS), True).cells([run])[0])


def _seeds(run: RunRecord) -> str:
    """What of several seeds the page shows."""
    if len(run.seeds) == 1:
        return ""
    return f"Maps, matrices, bounds, predictions and settings are those of seed {run.seed}."


def _test(run: RunRecord) -> str:
    if run.test is None:
        return ""
    if len(run.seeds) > 1:
        shown = across_seeds(run, lambda seed: seed.test and seed.test[1])
        return f"Test {run.metric_name} {shown}, with the best weights of each seed."
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
    """The outcome of all runs; of a run with several seeds some may have solved the task, such as "1 of 3 solved"."""
    words = [word if word in OUTCOMES else word.replace("solved", "seeds solved the task") for word in verdicts]
    if len(runs) == 1:
        return OUTCOMES.get(words[0], f"{words[0]}.")
    groups = {word: [r.label for r, w in zip(runs, words, strict=True) if w == word] for word in words}
    solved = groups.pop("Solved", [])
    first = [f"{len(solved)} of {len(runs)} runs solved the task: {', '.join(solved)}."] if solved else []
    if not solved and OUTCOMES.keys() >= set(words):
        first = [f"None of the {len(runs)} runs solved the task."]
    return " ".join([*first, *(f"{word}: {', '.join(labels)}." for word, labels in groups.items())])
