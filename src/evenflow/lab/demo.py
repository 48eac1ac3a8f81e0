"""The settings of `evenflow demo`: recurrent networks on the copy task, trained under the same rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenflow.lab.sweep.compare import Attempt

TASK: dict[str, Any] = {"name": "copy", "length": 100}
UNITS = 96
# Both kinds of matrix with the same activations; an LSTM has gates, whose functions are not a choice.
ACTIVATIONS = ("tanh", "abs", "modrelu")
SYSTEMS: list[dict[str, Any]] = [
    {"label": f"{name}, activation {activation}", "name": name, "activation": activation, "hidden_size": UNITS}
    for name in ("rnn", "exprnn")
    for activation in ACTIVATIONS
] + [{"label": "lstm", "name": "lstm", "hidden_size": UNITS}]
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
Every network reads {items} symbols and then {length} blanks, and has to output the symbols again. A network without \
memory can only predict the blanks; its loss is the dashed line. The symbols are the first {items} steps: where \
the gradient has vanished by then, nothing about them can be learned.

The rules, the same for all:

- {steps} updates of {batch_size} sequences, RMSprop, learning rate falling linearly to zero, gradient norm clipped at \
{clip_norm:g}, {hidden} hidden units, one layer, seed {seed}.
- Each network was trained three times, at the learning rates {lrs}; the page shows the one with the best validation.
- rnn has a free matrix, which starts orthogonal; exprnn has one that stays orthogonal. Each of them was trained with \
each of the activations {activations}. The systems of these names have tanh and modrelu. An lstm has none to choose.
- With more updates other networks may learn the task as well.

One example that no network was trained on. Its symbols were {example}, and each network's answer is:"""


def run(
    folder: Path, *, progress: bool = True, announce: Callable[[str], None] = lambda _: None
) -> tuple[list[Attempt], Path]:
    """Train all systems, write the page, and return the best attempt of each and the page's path."""
    from evenflow.lab.report import write_report
    from evenflow.lab.sweep.compare import compare

    best = compare(TASK, SYSTEMS, TRAINING, LRS, folder, progress=progress, announce=announce)
    right, answers = example(best)
    intro = INTRO.format(
        **TRAINING,
        items=len(right),
        length=TASK["length"],
        hidden=UNITS,
        lrs=", ".join(f"{lr:g}" for lr in LRS),
        activations=", ".join(ACTIVATIONS),
        example=" ".join(map(str, right)),
    )
    lines = [f"- {_answer(attempt, answer, right)}" for attempt, answer in zip(best, answers, strict=True)]
    notes = [f"Best of {len(LRS)} learning rates: {attempt.lr:g}." for attempt in best]
    page = write_report(
        [attempt.folder for attempt in best],
        folder / "report.html",
        TITLE,
        "\n\n".join((intro, "\n".join(lines))),
        notes=notes,
    )
    return best, page


def example(attempts: Sequence[Attempt]) -> tuple[list[int], list[list[int] | None]]:
    """The symbols of one sequence, and the answer of each network with its best weights; None without weights."""
    import torch

    from evenflow.lab import tasks
    from evenflow.lab.training import Run, build

    task = tasks.Copy(length=TASK["length"])
    batch = task.batch(1, torch.Generator().manual_seed(0))
    answers: list[list[int] | None] = []
    for attempt in attempts:
        run = Run(attempt.folder)
        try:
            weights = run.weights("best")
        except ValueError:  # it diverged before the first validation
            answers.append(None)
            continue
        model = build(task, run.config["system"], seed=0).eval()
        model.load_state_dict(weights)
        with torch.no_grad():
            outputs = model(batch.inputs)[0]
        answers.append(outputs[-task.items :, 0].argmax(-1).tolist())
    return batch.targets[-task.items :, 0].tolist(), answers


def _answer(attempt: Attempt, answer: list[int] | None, right: list[int]) -> str:
    if answer is None:
        return f"{attempt.system}: none, it diverged"
    shown = " ".join("blank" if symbol == 0 else str(symbol) for symbol in answer)
    hits = sum(a == b for a, b in zip(answer, right, strict=True))
    return f"{attempt.system}: {shown} ({hits} of {len(right)} right)"
