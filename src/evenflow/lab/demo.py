"""The settings of `evenflow demo`: four networks on the copy task, trained under the same rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenflow.lab.sweep.compare import Attempt

TASK: dict[str, Any] = {"name": "copy", "length": 100}
SYSTEMS: list[dict[str, Any]] = [
    {"name": "rnn", "hidden_size": 96},
    {"name": "lstm", "hidden_size": 96},
    {"name": "urnn", "hidden_size": 96, "activation": "identity"},  # linear, as in Vorontsov et al. 2017
    {"name": "exprnn", "hidden_size": 96},
]
TRAINING: dict[str, Any] = {
    "steps": 800,
    "batch_size": 50,
    "optimizer": "rmsprop",
    "schedule": "linear",
    "clip_norm": 1.0,
    "validate_every": 100,
    "validation_batches": 4,
    "probe_every": 50,
    "checkpoint_every": 400,
    "seed": 1,
    "device": "cpu",
}
LRS = (1e-2, 1e-3, 1e-4)
TITLE = "Watch a gradient vanish, and then not vanish"
INTRO = """\
Every network reads ten symbols and then a hundred blanks, and has to output the symbols again. A network without \
memory can only predict the blanks; its loss is the dashed line.

The rules, the same for all:

- {steps} updates of {batch_size} sequences, RMSprop, learning rate falling linearly to zero, gradient norm clipped at \
{clip_norm:g}, {hidden} hidden units, one layer, seed {seed}.
- Each network was trained three times, at the learning rates {lrs}; the page shows the one with the lowest \
validation loss.
- No setting was tuned for one network only; rnn and urnn both start from an orthogonal matrix. With more updates an \
LSTM may learn the task as well."""


def run(
    folder: Path, *, progress: bool = True, announce: Callable[[str], None] = lambda _: None
) -> tuple[list[Attempt], Path]:
    """Train all systems, write the page, and return the best attempt of each and the page's path."""
    from evenflow.lab.report import write_report
    from evenflow.lab.sweep.compare import compare

    best = compare(TASK, SYSTEMS, TRAINING, LRS, folder, progress=progress, announce=announce)
    intro = INTRO.format(**TRAINING, hidden=SYSTEMS[0]["hidden_size"], lrs=", ".join(f"{lr:g}" for lr in LRS))
    notes = [f"Best of {len(LRS)} learning rates: {attempt.lr:g}." for attempt in best]
    page = write_report([attempt.folder for attempt in best], folder / "report.html", TITLE, intro, notes=notes)
    return best, page
