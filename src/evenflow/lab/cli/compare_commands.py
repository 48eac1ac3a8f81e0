"""The commands `compare` and `demo`, which train several systems on one task and put them side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.lab.terminal import complain, new_table, say, show

from .application import app, same_command_continues
from .options import Data, Hidden, Quiet, TaskOptions, parse_numbers, takes_settings, task_name, task_table

if TYPE_CHECKING:
    from evenflow.lab.sweep.compare import Attempt


@app.command()
@takes_settings("lr", "start_from")
def compare(
    task: Annotated[str, typer.Argument(help="The task; see `evenflow tasks`.")],
    systems: Annotated[list[str], typer.Argument(help="One or more systems; see `evenflow systems`.")],
    lrs: Annotated[str, typer.Option(help="Learning rates to train each system at, with commas.")] = "1e-2,1e-3,1e-4",
    until_solved: Annotated[
        bool, typer.Option(help="Skip the remaining learning rates of a system that has solved the task.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the runs and the page. Default: runs/compare-TASK.")
    ] = None,
    hidden: Hidden = 128,
    data: Data = None,
    task_option: TaskOptions = None,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Train several systems on one task under the same rules, and compare the best run of each.

    Every system is trained once at each learning rate. Prints a table and writes an HTML page.

    Example:  evenflow compare adding rnn lstm sgornn --hidden 64 --steps 1000 -t length=200 --probe-every 50
    """
    from evenflow.lab.report import write_report
    from evenflow.lab.sweep.compare import compare as train_all

    folder = folder or Path("runs") / f"compare-{task_name(task)}"
    with same_command_continues():
        best = train_all(
            task_table(task, task_option, data),
            [{"name": name, "hidden_size": hidden} for name in systems],
            {key: value for key, value in settings.items() if value is not None},
            parse_numbers("--lrs", lrs),
            folder,
            until_solved=until_solved,
            progress=not quiet,
            announce=say,
        )
    show_attempts(best)
    notes = ["" if math.isnan(run.lr) else f"Best of the learning rates {lrs}: {run.lr:g}." for run in best]
    page = write_report([attempt.folder for attempt in best], folder / "report.html", notes=notes)
    say(f"The page: {page.resolve()}")
    check_divergence(best)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Folder of the runs and the page.")] = Path("runs/demo"),
    quiet: Quiet = False,
) -> None:
    """Train networks with free and with orthogonal matrices to copy symbols: a table and an HTML page.

    Takes two to three minutes on two cores. If the runs exist already, they are only shown.

    Example:  evenflow demo --folder runs/demo
    """
    from evenflow.lab import demo as settings

    say(f"The copy task, {len(settings.SYSTEMS)} systems at {len(settings.LRS)} learning rates each.")
    with same_command_continues():
        best, page = settings.run(folder, progress=not quiet, announce=say)
    show_attempts(best)
    say(f"The page: {page.resolve()}")


def show_attempts(best: Sequence[Attempt]) -> None:
    """Print a table with the best attempt of each system, and what counts as solved."""
    task = best[0].task
    numbers = ("parameters", "best lr", f"best validation {task.metric_name}", "loss")
    table = new_table("system", *numbers, "verdict", "seconds", right=(*numbers, "seconds"))
    for attempt in best:
        table.add_row(
            attempt.system,
            f"{attempt.parameters:,}",
            "its own" if math.isnan(attempt.lr) else f"{attempt.lr:g}",
            f"{attempt.valid_metric:.4g}",
            f"{attempt.valid_loss:.4g}",
            "diverged" if attempt.diverged else "solved" if attempt.solved else "not solved",
            f"{attempt.seconds:.0f}",
        )
    show(table)
    say(f"{task.criterion} The best guess without memory has loss {task.baseline:.4g}.")


def check_divergence(best: Sequence[Attempt]) -> None:
    """Exit with code 1 if a system diverged at all its learning rates."""
    if lost := [attempt.system for attempt in best if attempt.diverged]:
        raise typer.Exit(complain(f"the loss became infinite or not a number at all rates of {', '.join(lost)}", 1))
