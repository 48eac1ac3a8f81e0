"""What a finished run answered on its test or validation part, read from its folder and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evenflow.lab.report.forecasts import ShownForecasts, read_forecasts
from evenflow.lab.training import Run

DAMAGED = "The predictions of this run cannot be read: answers.npz is damaged."
MISSING = "The predictions of this run were not recorded. They are written when a run finishes."
MISTAKE = ("sequence", "step", "true", "predicted", "chance", "true_chance", "length", "stride")


@dataclass(frozen=True)
class ShownMistake:
    """A sequence with a wrong answer: the fields of `training.answer_log.Mistake`, labels by their names.

    Attributes:
        length: steps of the sequence; `inputs` has every `stride`-th of them.
    """

    sequence: int
    name: str
    step: int
    true: str
    predicted: str
    chance: float
    true_chance: float
    length: int
    stride: int
    inputs: np.ndarray


@dataclass(frozen=True)
class RunAnswers:
    """The answers of a run: of classes `confusion` and what belongs to it, of numbers `errors` and `pairs`.

    Shapes:
        confusion ``(L, L)``, row by the true label; errors ``(O, 3)``: mean absolute error, root mean squared error,
        R²; pairs ``(P, 2, O)`` of true and predicted numbers.

    Attributes:
        part: "test" or "validation".
        kind: "classification", "regression" or "next", for the inputs of the next step.
        step: the update of the weights.
        sequences, answers: how many were compared.
        labels, mistakes: of classes.
        columns: of numbers.
        inputs: names of the inputs.
        forecasts: of a model that predicts the next step; None if there are none.
    """

    part: str
    kind: str
    step: int
    sequences: int
    answers: int
    labels: list[str]
    confusion: np.ndarray
    mistakes: list[ShownMistake]
    inputs: list[str]
    columns: list[str]
    errors: np.ndarray
    pairs: np.ndarray
    forecasts: ShownForecasts | None = None


def read_answers(run: Run) -> tuple[RunAnswers | None, str]:
    """The answers of a run, or None and a sentence that says why there are none."""
    try:
        arrays = run.answers
        return (None, MISSING) if arrays is None else (_checked(arrays), "")
    except (ValueError, KeyError, IndexError, TypeError, EOFError):
        return None, DAMAGED


def _checked(arrays: dict[str, np.ndarray]) -> RunAnswers:
    part, kind = str(arrays["part"]), str(arrays["kind"])
    if part not in ("test", "validation") or kind not in ("classification", "regression", "next"):
        raise ValueError(f"{part}, {kind}")
    step, sequences, answers = (int(arrays[name]) for name in ("step", "sequences", "answers"))
    labels, columns, inputs = (_words(arrays, name) for name in ("labels", "columns", "inputs"))
    confusion = arrays.get("confusion", np.zeros((0, 0), np.int64)).astype(np.int64, casting="safe")
    errors, pairs = arrays.get("errors", np.zeros((0, 3))), arrays.get("pairs", np.zeros((0, 2, 0)))
    sizes = len(labels), len(columns)
    if confusion.shape != (sizes[0],) * 2 or errors.shape != (sizes[1], 3) or pairs.shape[1:] != (2, sizes[1]):
        raise ValueError("arrays of shapes that do not agree")
    if (
        bool(labels) != (kind == "classification")
        or not any(sizes)
        or confusion.sum() != (answers if labels else 0)
        or (confusion < 0).any()
    ):
        raise ValueError("counts that do not agree")
    mistakes = _mistakes(arrays, labels, len(inputs))
    errors, pairs = errors.astype(np.float64), pairs.astype(np.float64)
    forecasts = read_forecasts(arrays)
    if forecasts is not None and (kind != "next" or len(forecasts.scale) > len(columns)):
        raise ValueError("forecasts of other columns")
    return RunAnswers(
        part, kind, step, sequences, answers, labels, confusion, mistakes, inputs, columns, errors, pairs, forecasts
    )


def _words(arrays: dict[str, np.ndarray], name: str) -> list[str]:
    return [str(word) for word in arrays.get(name, np.array([], dtype=str)).ravel()]


def _mistakes(arrays: dict[str, np.ndarray], labels: list[str], width: int) -> list[ShownMistake]:
    if "mistake_sequence" not in arrays:
        return []
    fields: list[Any] = [arrays[f"mistake_{name}"].tolist() for name in MISTAKE]
    names = _words(arrays, "mistake_name") or [""] * len(fields[0])  # older runs have none
    inputs, first, mistakes = arrays["mistake_inputs"].astype(np.float64), 0, []
    for name, sequence, step, true, predicted, chance, true_chance, length, stride in zip(names, *fields, strict=True):
        count = -(-length // max(1, stride))
        shown = inputs[first : first + count]
        if stride < 1 or shown.shape[0] != count or shown.shape[1] > width or min(true, predicted) < 0:
            raise ValueError("sequences that do not agree")
        classes = labels[true], labels[predicted]
        mistakes.append(ShownMistake(sequence, name, step, *classes, chance, true_chance, length, stride, shown))
        first += count
    return mistakes
