"""What can be read off an attempt: one number, or a text, each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .evidence import Evidence

LEARNED = 0.5  # of the memoryless baseline: a loss below it is more than a start
PARTIAL = 0.9  # of the memoryless baseline: a loss below it is the beginning of an answer

MOST = 0.9  # of the answers right: reached sooner than the whole, and so less a matter of luck


@dataclass(frozen=True)
class Measure:
    """A function of the evidence.

    Attributes:
        about: what it is, in a phrase.
        trains: whether it needs a trained model; a recipe whose measures need none trains nothing.
        costly: whether its value is kept beside the run, because working it out takes long.
        words: what its numbers are called, for one that has few.
        outlives: whether it also has a meaning for a run that diverged.
        looked: whether it counts updates up to a validation, and so is known to one validation and no better.
    """

    read: Callable[[Evidence], float | str]
    about: str
    trains: bool = True
    costly: bool = False
    words: tuple[tuple[float, str], ...] = ()
    outlives: bool = False
    looked: bool = False


def _status(name: str) -> Callable[[Evidence], float]:
    return lambda e: float(e.status.get(name, math.nan))


def _convergence(e: Evidence) -> float:
    if not e.diverged and e.task.solved(e.best("valid_metric")):
        return 1.0
    return 0.5 if e.best("valid_loss") < PARTIAL * e.task.baseline else 0.0


def _learns(e: Evidence) -> float:
    return float(e.best("valid_loss") < LEARNED * e.task.baseline)


def _first(e: Evidence, reached: Callable[[float], bool]) -> float:
    """The first validated update whose metric will do; infinite where none does."""
    for step, metric in zip(*e.curve("valid_metric"), strict=True):
        if np.isfinite(metric) and reached(float(metric)):
            return float(step)
    return math.inf


def _pace(e: Evidence) -> float:
    """Between the first logged row and the last, so that what is done once does not count."""
    steps, seconds = e.curve("seconds")
    if len(steps) < 2 or steps[-1] == steps[0]:
        return math.nan
    return 1000 * float(seconds[-1] - seconds[0]) / float(steps[-1] - steps[0])


def _flow(e: Evidence) -> float:
    """First step over last step, at the last probe."""
    found = e.probed("gradient_norm")
    return math.nan if found is None else _share(found[1][-1])


def _jacobian_flow(e: Evidence) -> float:
    found = e.probed("jacobian_norm")
    return math.nan if found is None else _share(found[1][-1][::-1])


def _share(norms: np.ndarray) -> float:
    """First over last value above zero; zero where the gradient does not arrive."""
    above = np.flatnonzero(norms > 0)
    return float(norms[0] / norms[above[-1]]) if len(above) else math.nan


def _margin(e: Evidence) -> float:
    """max |σ - 1| over all recurrent matrices."""
    from evenflow.probes import spectrum

    return max(float(np.abs(s.singular_values - 1).max()) for s in spectrum(e.model, eigenvalues_up_to=0))


def _singular_mean(e: Evidence) -> float:
    from evenflow.probes import spectrum

    return spectrum(e.model, eigenvalues_up_to=0)[0].mean


def _slope(e: Evidence) -> float:
    """The mean trained slope of a prelu."""
    found = [p.detach().mean().item() for name, p in e.model.named_parameters() if "activation" in name]
    return sum(found) / len(found) if found else math.nan


def _layer_parameters(e: Evidence) -> float:
    model = e.fresh()
    layer = getattr(model, "layer", model)
    return float(sum(p.numel() for p in layer.parameters() if p.requires_grad))


def _parameters(e: Evidence) -> float:
    return float(sum(p.numel() for p in e.fresh().parameters() if p.requires_grad))


YES_NO = ((0.0, "no"), (1.0, "yes"))

MEASURES: dict[str, Measure] = {
    "test_metric": Measure(_status("test_metric"), "metric of the best weights on the test part"),
    "test_loss": Measure(_status("test_loss"), "loss of the best weights on the test part"),
    "best_metric": Measure(lambda e: e.best("valid_metric"), "metric of the best validation"),
    "best_loss": Measure(lambda e: e.best("valid_loss"), "lowest loss of a validation"),
    "final_metric": Measure(lambda e: e.last("valid_metric"), "metric of the last validation"),
    "final_loss": Measure(lambda e: e.last("valid_loss"), "loss of the last validation"),
    "train_loss": Measure(lambda e: e.last("loss"), "training loss at the end"),
    "train_perplexity": Measure(lambda e: math.exp(min(e.last("loss"), 700.0)), "e to the training loss at the end"),
    "parameters": Measure(_parameters, "trained numbers of the whole model", trains=False, outlives=True),
    "layer_parameters": Measure(_layer_parameters, "trained numbers of the layer", trains=False, outlives=True),
    "solved": Measure(
        lambda e: float(not e.diverged and e.task.solved(e.best("valid_metric"))),
        "whether the best validation solves the task",
        words=YES_NO,
        outlives=True,
    ),
    "convergence": Measure(
        _convergence,
        f"yes: solved; partial: a validation loss below {PARTIAL:g} of the memoryless baseline; no: neither",
        words=((0.0, "no"), (0.5, "partial"), (1.0, "yes")),
        outlives=True,
    ),
    "learns": Measure(
        _learns,
        f"whether a validation loss fell below {LEARNED:g} of the memoryless baseline",
        words=YES_NO,
        outlives=True,
    ),
    "diverged": Measure(lambda e: float(e.diverged), "whether the loss became infinite", words=YES_NO, outlives=True),
    "updates_to_solve": Measure(
        lambda e: _first(e, e.task.solved), "updates until a validation solves the task", outlives=True, looked=True
    ),
    "updates_to_most": Measure(
        lambda e: _first(e, lambda metric: metric >= MOST),
        "updates until 90 % of the answers are right",
        outlives=True,
        looked=True,
    ),
    "seconds_per_1000": Measure(_pace, "seconds per thousand updates"),
    "gradient_ratio": Measure(_flow, "|∂L/∂h_1| over |∂L/∂h_T| at the last probe"),
    "jacobian_ratio": Measure(_jacobian_flow, "‖∂h_T/∂h_1‖ over ‖∂h_T/∂h_T‖ at the last probe"),
    "spectral_margin": Measure(_margin, "max |σ - 1| of the recurrent matrix"),
    "singular_mean": Measure(_singular_mean, "mean singular value of the recurrent matrix"),
    "test_accuracy": Measure(lambda e: e.accuracy(), "share of right symbols on the test part", costly=True),
    "metric_gap": Measure(lambda e: e.gap[0], "training minus test metric, last weights", costly=True),
    "loss_gap": Measure(lambda e: e.gap[1], "test minus training loss, last weights", costly=True),
    "jacobian_norm": Measure(lambda e: float(e.jacobian_norms.mean()), "mean ‖∂h_T/∂h_1‖_F", costly=True),
    "temporal_ratio": Measure(
        lambda e: _share(e.temporal_norms), "first over last temporal component of the gradient", trains=False
    ),
    "prelu_slope": Measure(_slope, "mean trained slope below zero"),
    "sentence": Measure(lambda e: e.sentence(), "a sentence, always the likeliest word", costly=True),
}
