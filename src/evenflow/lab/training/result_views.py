"""What a notebook shows of a result: a table of numbers and the curves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from evenflow.figures import DASHED, MUTED, PrintFigure, draw_line, html_table, print_figure, span

if TYPE_CHECKING:
    from .result import Result

WIDE = 20.0  # largest over smallest value from which a logarithmic axis is easier to read


def result_figure(result: Result) -> PrintFigure:
    """The loss of training and validation with the loss without memory, and the metric of the validations."""
    history = result.history
    step = history["step"]
    same = np.allclose(history["valid_loss"], history["valid_metric"], rtol=1e-4, equal_nan=True)
    with print_figure(panels=1 if same else 2, width=400) as (figure, axes):
        for index, (name, label) in enumerate((("loss", "training"), ("valid_loss", "validation"))):
            rows = np.isfinite(history[name])
            draw_line(axes[0], index, step[rows], history[name][rows], label)
        baseline = result.task.baseline
        if math.isfinite(baseline):
            axes[0].axhline(baseline, color=MUTED, linestyle=DASHED, linewidth=1.3, label="without memory")
        if span([history["loss"], history["valid_loss"]]) > WIDE:
            axes[0].set_yscale("log")
        axes[0].set(xlabel="update", ylabel="loss")
        axes[0].legend()
        if not same:
            rows = np.isfinite(history["valid_metric"])
            draw_line(axes[1], 1, step[rows], history["valid_metric"][rows])
            axes[1].set(xlabel="update", ylabel=f"validation {result.task.metric_name}")
    return figure


def result_html(result: Result) -> str:
    """The outcome as a table, and the curves below."""
    metric = result.task.metric_name
    rows = [
        ("updates", f"{result.steps:,} in {result.seconds:.3g} s"),
        (f"best validation {metric}", f"{result.best_metric:.4g} at update {result.best_step:,}"),
        (f"last validation {metric}", f"{result.valid_metric:.4g}"),
        ("validation loss", f"{result.valid_loss:.4g}, without memory {result.task.baseline:.4g}"),
        ("solved", f"{'yes' if result.solved else 'no'}. {result.task.criterion}"),
    ]
    if not math.isnan(result.test_metric):
        rows.append((f"test {metric}", f"{result.test_metric:.4g}, loss {result.test_loss:.4g}"))
    if result.folder is not None:
        rows.append(("run folder", str(result.folder)))
    return html_table(rows) + result_figure(result).to_bytes("svg").decode().partition("?>")[2]
