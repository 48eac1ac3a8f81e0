"""What the page shows of the predictions of each run: sentences, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenflow.lab.report.confusion import class_table, confused_pairs, confusion_table
from evenflow.lab.report.forecasts import forecast_caption, forecast_panels, forecast_table
from evenflow.lab.report.mistakes import mistake_panels
from evenflow.lab.report.numbers import number
from evenflow.lab.report.residuals import MOST, error_rows, residual_panels
from evenflow.lab.report.run_answers import MISSING, RunAnswers, read_answers
from evenflow.lab.report.run_record import RunRecord

METRIC_DIGITS = 4


def prediction_views(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """One view for each run, in order; none at all if no run has predictions to show."""
    all_answers = [read_answers(run) for run in runs]
    if all(answers is None and gap == MISSING for answers, gap in all_answers):
        return []
    return [
        _view(i, run, *each, alone=len(runs) == 1) for i, (run, each) in enumerate(zip(runs, all_answers, strict=True))
    ]


def _view(index: int, run: RunRecord, answers: RunAnswers | None, gap: str, alone: bool) -> dict[str, Any]:
    view: dict[str, Any] = {"gap": gap, "sentence": "", "confusion": None, "errors": [], "panels": [], "mistakes": []}
    view |= {"fan": [], "forecast": None}
    if answers is None:
        return view
    view["sentence"] = _sentence(answers)
    if answers.labels:
        view["confusion"] = confusion_table(answers.labels, answers.confusion)
        view["pairs"] = confused_pairs(answers.labels, answers.confusion)
        view["classes"] = class_table(answers.labels, answers.confusion)
        view["count"] = len(answers.labels)
        # On the page of one run alone: ten figures for each of many runs would hide what differs between them.
        view["mistakes"] = mistake_panels(f"mistake-{index}", answers, run.task) if alone else []
    else:
        view["errors"] = error_rows(answers)
        view["panels"] = residual_panels(f"answers-{index}", answers, index)
        view["left_out"] = max(0, len(answers.columns) - MOST)
        if answers.forecasts is not None:
            view["forecast"] = forecast_table(answers.forecasts, answers.columns)
            view["forecast"]["caption"] = forecast_caption(answers.forecasts)
            view["forecast"]["columns"] = len(answers.forecasts.scale), len(answers.columns)
            fan = forecast_panels(f"forecast-{index}", answers.forecasts, answers.columns, answers.part, index)
            view["fan"] = fan
    return view


def _sentence(answers: RunAnswers) -> str:
    """Which part of the data was compared, and with which weights."""
    sequences = f"{answers.sequences:,} sequence{'s' if answers.sequences != 1 else ''}"
    ahead = " of the next step" if answers.kind == "next" else ""
    count = f", {answers.answers:,} predictions{ahead}" if answers.answers != answers.sequences or ahead else ""
    right = ""
    if answers.labels:
        hits = int(answers.confusion.trace())
        right = f" {hits:,} are right, an accuracy of {number(hits / max(1, answers.answers), METRIC_DIGITS)}."
    return f"The {answers.part} part: {sequences}{count}, with the weights of update {answers.step:,}.{right}"
