"""Measures: named functions that read one number, or one text, from a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenflow.probes import spectrum

from .map_cost import extra_time
from .run_data import CONVERGED, RunData
from .schema import Column, Recipe

LEARNED = 0.5  # a loss below this share of the memoryless baseline counts as learning
PARTIAL = 0.9  # a loss below this share of the memoryless baseline counts as a partial solution
MOST = 0.9  # share of right answers for `updates_to_most`

YES_NO = ((0.0, "no"), (1.0, "yes"))


@dataclass(frozen=True)
class Measure:
    """A function of a run, with what tables need to know about its values.

    Attributes:
        read: the function.
        about: what it measures, in a phrase.
        trains: whether it needs a trained model. A recipe trains nothing if none of its measures does.
        costly: whether the value is stored in the run folder, because it takes long to compute.
        words: names of the values, for a measure that has few.
        outlives: whether a diverged run has a value too.
        validated: whether it counts updates up to a validation, so that its resolution is one validation interval.
    """

    read: Callable[[RunData], float | str]
    about: str
    trains: bool = True
    costly: bool = False
    words: tuple[tuple[float, str], ...] = ()
    outlives: bool = False
    validated: bool = False


def measure_of(column: Column) -> Measure:
    return MEASURES[column.measure]


def needs_training(recipe: Recipe) -> bool:
    """Whether a recipe trains anything."""
    return any(measure_of(column).trains for column in recipe.columns)


def _status(name: str) -> Callable[[RunData], float]:
    return lambda run: float(run.status.get(name, math.nan))


def _convergence(run: RunData) -> float:
    if run.converged:
        return 1.0
    return 0.5 if run.best("valid_loss") < PARTIAL * run.task.baseline else 0.0


def _first_update(run: RunData, reached: Callable[[float], bool]) -> float:
    """The first validated update whose metric has reached a goal; infinity if none has."""
    for step, metric in zip(*run.curve("valid_metric"), strict=True):
        if np.isfinite(metric) and reached(float(metric)):
            return float(step)
    return math.inf


def _seconds_per_1000(run: RunData) -> float:
    """From the first logged row to the last, so that the time of the start does not count."""
    steps, seconds = run.curve("seconds")
    if len(steps) < 2 or steps[-1] == steps[0]:
        return math.nan
    return 1000 * float(seconds[-1] - seconds[0]) / float(steps[-1] - steps[0])


def _last_probe_ratio(run: RunData, name: str, backwards: bool = False) -> float:
    probes = run.probe(name)
    return math.nan if probes is None else _first_over_last(probes[1][-1][:: -1 if backwards else 1])


def _first_over_last(norms: np.ndarray) -> float:
    """First value over the last value above zero; zero if the gradient vanishes before the first step."""
    above = np.flatnonzero(norms > 0)
    return float(norms[0] / norms[above[-1]]) if len(above) else math.nan


def _decades(ratio: float) -> float:
    return math.log10(ratio) if ratio > 0 else math.nan


def _spectra(run: RunData) -> list[Any]:
    return list(spectrum(run.model, eigenvalues_up_to=0))


def _prelu_slope(run: RunData) -> float:
    slopes = [p.detach().mean().item() for name, p in run.model.named_parameters() if "activation" in name]
    return sum(slopes) / len(slopes) if slopes else math.nan


def _parameters(run: RunData, part: str | None = None) -> float:
    """Trained parameters of the model, or of a part of it."""
    model = run.initial_model()
    model = model if part is None else getattr(model, part, model)
    return float(sum(p.numel() for p in model.parameters() if p.requires_grad))


MEASURES: dict[str, Measure] = {
    "test_metric": Measure(_status("test_metric"), "metric of the best weights on the test part"),
    "test_loss": Measure(_status("test_loss"), "loss of the best weights on the test part"),
    "best_metric": Measure(lambda run: run.best("valid_metric"), "metric of the best validation"),
    "best_loss": Measure(lambda run: run.best("valid_loss"), "lowest loss of a validation"),
    "final_metric": Measure(lambda run: run.last("valid_metric"), "metric of the last validation"),
    "final_loss": Measure(lambda run: run.last("valid_loss"), "loss of the last validation"),
    "train_loss": Measure(lambda run: run.last("loss"), "training loss at the end"),
    "train_perplexity": Measure(
        lambda run: math.exp(min(run.last("loss"), 700.0)), "e to the training loss at the end"
    ),
    "parameters": Measure(_parameters, "trained numbers of the whole model", trains=False, outlives=True),
    "layer_parameters": Measure(
        lambda run: _parameters(run, "layer"), "trained numbers of the layer", trains=False, outlives=True
    ),
    "solved": Measure(
        lambda run: float(run.solved), "whether the best validation solves the task", words=YES_NO, outlives=True
    ),
    "convergence": Measure(
        _convergence,
        f"yes: solved, or a validation loss below {CONVERGED:g} of the memoryless baseline; partial: below "
        f"{PARTIAL:g} of it; no: neither",
        words=((0.0, "no"), (0.5, "partial"), (1.0, "yes")),
        outlives=True,
    ),
    "learns": Measure(
        lambda run: float(run.best("valid_loss") < LEARNED * run.task.baseline),
        f"whether a validation loss fell below {LEARNED:g} of the memoryless baseline",
        words=YES_NO,
        outlives=True,
    ),
    "lr": Measure(
        lambda run: float(run.job.config["training"]["lr"]),
        "the learning rate of the run, which a search has selected",
        trains=False,
        outlives=True,
    ),
    "diverged": Measure(
        lambda run: float(run.diverged), "whether the loss became infinite", words=YES_NO, outlives=True
    ),
    "updates_to_solve": Measure(
        lambda run: _first_update(run, run.task.solved),
        "updates until a validation solves the task",
        outlives=True,
        validated=True,
    ),
    "updates_to_most": Measure(
        lambda run: _first_update(run, lambda metric: metric >= MOST),
        "updates until 90 % of the answers are right",
        outlives=True,
        validated=True,
    ),
    "seconds_per_1000": Measure(_seconds_per_1000, "seconds per thousand updates"),
    "map_extra_time": Measure(
        lambda run: extra_time(run.job),
        "by how many per cent an update takes longer with the map than with a free matrix, taking turns",
        trains=False,
    ),
    "gradient_ratio": Measure(
        lambda run: _last_probe_ratio(run, "gradient_norm"), "|∂L/∂h_1| over |∂L/∂h_T| at the last probe"
    ),
    "jacobian_ratio": Measure(
        lambda run: _last_probe_ratio(run, "jacobian_norm", backwards=True),
        "‖∂h_T/∂h_1‖ over ‖∂h_T/∂h_T‖ at the last probe",
    ),
    "spectral_margin": Measure(
        lambda run: max(float(np.abs(s.singular_values - 1).max()) for s in _spectra(run)),
        "max |σ - 1| of the recurrent matrix",
    ),
    "singular_mean": Measure(lambda run: _spectra(run)[0].mean, "mean singular value of the recurrent matrix"),
    "test_accuracy": Measure(lambda run: run.accuracy(), "share of right symbols on the test part", costly=True),
    "metric_gap": Measure(
        lambda run: run.generalization_gap[0], "training minus test metric, last weights", costly=True
    ),
    "loss_gap": Measure(lambda run: run.generalization_gap[1], "test minus training loss, last weights", costly=True),
    "jacobian_norm": Measure(lambda run: float(run.jacobian_norms.mean()), "mean ‖∂h_T/∂h_1‖_F", costly=True),
    "temporal_decades": Measure(
        lambda run: _decades(_first_over_last(run.component_norms)),
        "log10 of the first over the last temporal component of the gradient",
        trains=False,
    ),
    "prelu_slope": Measure(_prelu_slope, "mean trained slope below zero"),
    "sentence": Measure(lambda run: run.sentence(), "a sentence, always the likeliest word", costly=True),
}
