"""The commands `compare` and `demo`, which train several systems on one task and put them side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.lab.launches import LaunchPlace
from evenflow.lab.terminal import complain, read_value, say
from evenflow.runtime.import_path import short_name

from .application import app, same_command_continues
from .options import (
    Data,
    Figures,
    Hidden,
    Quiet,
    Table,
    TaskOptions,
    parse_numbers,
    parse_options,
    takes_settings,
    task_name,
    task_table,
)
from .place_options import takes_place
from .result_files import say_files, show_table

if TYPE_CHECKING:
    from evenflow.lab.report.run_record import RunRecord
    from evenflow.lab.sweep.compare import Attempt


@app.command()
@takes_place
@takes_settings("lr", "start_from")
def compare(
    task: Annotated[str, typer.Argument(help="The task; see `evenflow tasks`.")],
    systems: Annotated[
        list[str],
        typer.Argument(help="One or more systems, see `evenflow systems`; LABEL=SYSTEM gives one a name of its own."),
    ],
    lrs: Annotated[str, typer.Option(help="Learning rates to train each system at, with commas.")] = "1e-2,1e-3,1e-4",
    seeds: Annotated[
        int, typer.Option(min=1, help="Train each system with this many seeds at each rate, starting at --seed.")
    ] = 1,
    until_solved: Annotated[
        bool, typer.Option(help="Skip the remaining learning rates of a system that has solved the task.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the runs and the page. Default: runs/compare-TASK.")
    ] = None,
    hidden: Hidden = 128,
    data: Data = None,
    task_option: TaskOptions = None,
    system_option: Annotated[
        list[str] | None,
        typer.Option(
            "--system-option",
            "-s",
            metavar="[LABEL:]KEY=VALUE",
            help="An option of all systems, or with a label of that one: -s num_layers=2 -s ortho:map=cayley. "
            "Repeatable.",
        ),
    ] = None,
    table: Table = None,
    figures: Figures = None,
    quiet: Quiet = False,
    *,
    place: LaunchPlace,
    **settings: Any,
) -> None:
    """Train several systems on one task under the same rules, and compare the best runs of each.

    Every system is trained at each learning rate with each seed; the rate with the best mean validation counts. Prints
    a table and writes an HTML page. With several seeds the table has means and standard errors and marks what differs
    from the best by more than chance.

    Example:  evenflow compare adding rnn lstm sgornn --hidden 64 --steps 1000 -t length=200 --probe-every 50

    Example:  evenflow compare adding free=rnn ortho=rnn lstm -s ortho:map=cayley -s ortho:hidden_size=90 --seeds 5
    --lrs 1e-3 --table latex --figures pdf
    """
    from evenflow.lab.report import check_formats
    from evenflow.lab.sweep.compare import compare as train_all

    check_formats(table, figures)
    folder = folder or Path("runs") / f"compare-{task_name(task)}"
    with same_command_continues():
        best = train_all(
            task_table(task, task_option, data),
            system_tables(systems, hidden, system_option),
            {key: value for key, value in settings.items() if value is not None},
            parse_numbers("--lrs", lrs),
            folder,
            seeds=seeds,
            until_solved=until_solved,
            place=place,
            progress=not quiet,
            announce=say,
        )
    notes = ["" if math.isnan(run.lr) else f"Best of the learning rates {lrs}: {run.lr:g}." for run in best]
    show_attempts(best, folder, notes, table, figures)
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
    from evenflow.lab.report import result_table

    say(f"The copy task, {len(settings.SYSTEMS)} systems at {len(settings.LRS)} learning rates each.")
    with same_command_continues():
        best, page = settings.run(folder, progress=not quiet, announce=say)
    show_table(result_table(attempt_groups(best), rates=True))
    say(explanation(best[0]))
    say(f"The page: {page.resolve()}")


def system_tables(systems: Sequence[str], hidden: int, options: Sequence[str] | None) -> list[dict[str, Any]]:
    """The tables of the systems: their labels, names and options, those of all systems and those of their own."""
    tables = []
    for text in systems:
        label, equals, name = text.rpartition("=")
        if equals and not (label and name):
            raise ValueError(f"a system must be a name or LABEL=NAME, got {text!r}")
        tables.append({"label": label or short_name(name), "name": name, "hidden_size": hidden})
    labels = [str(table["label"]) for table in tables]
    for text in options or ():
        key, equals, value = text.partition("=")
        label, colon, name = key.rpartition(":")
        if colon and label not in labels:
            raise ValueError(f"--system-option must begin with one of the labels {', '.join(labels)}, got {text!r}")
        if colon and name == "hidden_size":  # so that systems can have as many parameters as each other
            parsed = {name: read_value(value)}
        else:
            parsed = parse_options("--system-option", [f"{name}{equals}{value}"])
        for table in tables:
            if not colon or table["label"] == label:
                table.update(parsed)
    return tables


def attempt_groups(best: Sequence[Attempt]) -> list[RunRecord]:
    """The runs of the attempts, as the page and the table show them."""
    from evenflow.lab.report import read_groups

    folders = [folder for attempt in best for folder in attempt.folders]
    return read_groups(folders, labels=[attempt.system for attempt in best for _ in attempt.folders])


def show_attempts(
    best: Sequence[Attempt], folder: Path, notes: Sequence[str], table: str | None, figures: str | None
) -> None:
    """Print the table of the best attempts, and write their page and the files beside it."""
    from evenflow.lab.report import result_table, write_beside, write_report

    groups = attempt_groups(best)
    show_table(result_table(groups, rates=True))
    say(explanation(best[0]))
    page = write_report(
        [path for attempt in best for path in attempt.folders],
        folder / "report.html",
        notes=[note for attempt, note in zip(best, notes, strict=True) for _ in attempt.folders],
        labels=[attempt.system for attempt in best for _ in attempt.folders],
    )
    say(f"The page: {page.resolve()}")
    say_files(write_beside(page, groups, table, figures, rates=True))


def explanation(attempt: Attempt) -> str:
    """What counts as solved, and what can be reached without memory."""
    return f"{attempt.task.criterion} The best guess without memory has loss {attempt.task.baseline:.4g}."


def check_divergence(best: Sequence[Attempt]) -> None:
    """Exit with code 1 if a system diverged at all its learning rates."""
    if lost := [attempt.system for attempt in best if attempt.diverged]:
        raise typer.Exit(complain(f"the loss became infinite or not a number at all rates of {', '.join(lost)}", 1))
