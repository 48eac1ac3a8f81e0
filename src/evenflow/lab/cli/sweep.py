"""A sweep: the best point of map × cell × activation for one task."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.lab.cli.app import app, said_again
from evenflow.lab.cli.options import (
    Data,
    Quiet,
    SystemOptions,
    TaskOptions,
    numbers,
    pairs,
    short,
    takes_settings,
    task_table,
)
from evenflow.lab.terminal import new_table, say, show

if TYPE_CHECKING:
    from evenflow.lab.sweep import Sweep

# Settings that are the sweep's own, or have no place in one.
OWN = ("steps", "epochs", "batch_size", "optimizer", "lr", "schedule", "decay", "decay_every")
ELSEWHERE = (
    "momentum",
    "nesterov",
    "alpha",
    "psi",
    "damping",
    "structural",
    "curvature_size",
    "penalty",
    "patience",
)
ROWS = 20


@app.command()
@takes_settings(*OWN, *ELSEWHERE, "stop_when_solved", "tensorboard", "validate_every", "checkpoint_every")
def sweep(
    task: Annotated[str, typer.Argument(help="What to learn; see `evenflow tasks`.")],
    updates: Annotated[int, typer.Option(help="The budget: updates of all runs together.")],
    parameters: Annotated[int | None, typer.Option(help="The most parameters of a whole model.")] = None,
    maps: Annotated[
        str, typer.Option(help="With commas; a map's options in brackets, as svd(margin=0.1).")
    ] = "exponential,householder,rotations,svd",
    cells: Annotated[str, typer.Option(help="elman, gated, scrn, gru, lstm, complex.")] = "elman,gated,gru,lstm",
    activations: Annotated[str, typer.Option(help="Of the cells that leave a choice.")] = "relu,abs,tanh,modrelu",
    hidden: Annotated[
        str | None, typer.Option(help="Hidden sizes; the largest multiple of 16 up to 512 that fits if not given.")
    ] = None,
    optimizers: Annotated[str, typer.Option(help="adam, rmsprop, sgd.")] = "adam",
    lrs: Annotated[str, typer.Option(help="Learning rates.")] = "1e-2,1e-3,1e-4",
    first: Annotated[int, typer.Option(help="Updates of every point in the first round.")] = 500,
    keep: Annotated[float, typer.Option(help="The share that goes on after a round.")] = 0.33,
    finalists: Annotated[int, typer.Option(help="Points in the last round.")] = 3,
    seeds: Annotated[int, typer.Option(help="Seeds of each in the last round, from --seed on.")] = 1,
    finish: Annotated[str, typer.Option(help="The rate in the last round: linear (to zero) or constant.")] = "linear",
    batch: Annotated[int, typer.Option("--batch", "--batch-size", help="Sequences in a batch.")] = 50,
    seconds: Annotated[float | None, typer.Option(help="Stop after this time; the same command goes on.")] = None,
    folder: Annotated[Path | None, typer.Option(help="For runs and sweep.json; runs/sweep/TASK if not given.")] = None,
    data: Data = None,
    task_option: TaskOptions = None,
    system_option: SystemOptions = None,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Find the best point of map × cell × activation for a task: all train a little, the better ones longer.

    Killed or stopped, the same command goes on. On a GPU points of one shape train side by side. See docs/sweep.md.

    Example:  evenflow sweep mnist --parameters 137000 --updates 200000 --seeds 3 --data ~/sets

    Example:  evenflow sweep digits --updates 20000 --hidden 32 --first 100 --cells elman,gated --lrs 1e-2,1e-3
    """
    from evenflow.lab.sweep import Axes, Rules
    from evenflow.lab.sweep import sweep as run

    axes = Axes(
        maps=_words(maps),
        cells=_words(cells),
        activations=_words(activations),
        hidden=None if hidden is None else _sizes(hidden),
        optimizers=_words(optimizers),
        lrs=numbers("--lrs", lrs),
        system=pairs("--system-option", system_option),
    )
    rules = Rules(updates, first, keep, seeds, finalists, finish)
    with said_again():
        found = run(
            task_table(task, task_option, data),
            axes,
            rules,
            folder or Path("runs") / "sweep" / short(task),
            parameters=parameters,
            training={"batch_size": batch} | {key: value for key, value in settings.items() if value is not None},
            seconds=seconds,
            progress=not quiet,
            announce=say,
        )
    show_sweep(found)


def show_sweep(found: Sweep) -> None:
    """The points in their order, and where everything lies."""
    tested = any(standing.test_metric == standing.test_metric for standing in found.standings)
    several = len({standing.point.optimizer for standing in found.standings}) > 1
    columns = ["rank", "map", "cell", "activation", "hidden", "parameters", *["optimizer"] * several, "lr", "updates"]
    table = new_table(*columns, "validation", *["test"] * tested, "state")
    table.padding = (0, 1, 0, 0)  # narrower, as there are many columns
    for column in table.columns:
        if column.header not in ("map", "cell", "activation", "optimizer", "state"):
            column.justify = "right"
    for rank, standing in enumerate(found.standings[:ROWS], 1):
        point = standing.point
        test = _number(standing.test_metric) if standing.state == "finished" else ""  # of those who got to the end
        table.add_row(
            str(rank),
            point.map,
            point.cell,
            point.activation,
            str(point.hidden_size),
            f"{point.parameters:,}",
            *[point.optimizer] * several,
            f"{point.lr:g}",
            f"{standing.updates:,}",
            _number(standing.valid_metric) + (f" ± {standing.spread:.2g}" if standing.spread >= 0 else ""),
            *[test] * tested,
            standing.state,
        )
    show(table)
    say(f"Validation{' and test' if tested else ''}: {found.metric_name}, of the best weights.")
    if len(found.standings) > ROWS:
        say(f"{len(found.standings) - ROWS} more in sweep.json.")
    spent = f"{found.updates:,} updates in {found.seconds:.0f} seconds"
    say(f"{spent}." if found.finished else f"Stopped after {spent}: the same command goes on.")
    best = found.best.folders
    page = f"   The page of the best:  evenflow report {best[0]}" if best else ""
    say(f"The sweep: {found.folder / 'sweep.json'}{page}")


def _number(value: float) -> str:
    return f"{value:.4g}" if value == value else ""


def _words(text: str) -> list[str]:
    """The parts between commas outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _sizes(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--hidden must be whole numbers with commas between them, got {text!r}") from None
