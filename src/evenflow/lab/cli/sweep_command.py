"""The command `sweep`: search maps, cells and activations for the best combination on one task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.checks import one_of
from evenflow.lab.launches import Here, LaunchPlace
from evenflow.lab.terminal import new_table, say, show
from evenflow.lab.training.optimizers import OPTIMIZERS
from evenflow.runtime.import_path import short_name

from .application import app, same_command_continues
from .options import (
    Data,
    Quiet,
    SystemOptions,
    TaskOptions,
    parse_numbers,
    parse_options,
    takes_settings,
    task_name,
    task_table,
)
from .place_options import takes_place
from .search_output import show_search

if TYPE_CHECKING:
    from evenflow.lab.sweep import Sweep

# Settings without an option here: the sweep chooses them itself, or they have no use in a sweep.
WITHOUT = (
    *("steps", "epochs", "batch_size", "optimizer", "lr", "schedule", "decay", "decay_every"),
    *("warmup", "decay_patience", "start_from"),
    *("momentum", "nesterov", "alpha", "psi", "damping", "structural", "curvature_size", "penalty", "patience"),
    *("stop_when_solved", "logger", "validate_every", "checkpoint_every"),
)
ROWS = 20  # of the leaderboard that are printed
FINALISTS = 3


@app.command()
@takes_place
@takes_settings(*WITHOUT)
def sweep(
    task: Annotated[str, typer.Argument(help="The task; see `evenflow tasks`.")],
    updates: Annotated[int, typer.Option(help="The budget: updates of all runs together.")],
    parameters: Annotated[int | None, typer.Option(help="Largest number of parameters of a model.")] = None,
    maps: Annotated[
        str, typer.Option(help="Maps, with commas; options of a map in brackets: svd(margin=0.1).")
    ] = "exponential,householder,rotations,svd",
    cells: Annotated[
        str, typer.Option(help="elman, gated, scrn, gru, lstm, complex, or of your own: module:name.")
    ] = "elman,gated,gru,lstm",
    activations: Annotated[str, typer.Option(help="For the cells that take an activation.")] = "relu,abs,tanh,modrelu",
    hidden: Annotated[
        str | None,
        typer.Option(help="Hidden sizes. Default: the largest multiple of 16 up to 512 within --parameters."),
    ] = None,
    optimizers: Annotated[str, typer.Option(help=f"Optimizers: {', '.join(OPTIMIZERS)}.")] = "adam",
    lrs: Annotated[
        str | None, typer.Option(help="Learning rates. Default: 1e-2,1e-3,1e-4; for optuna the range 1e-4:1e-1.")
    ] = None,
    first: Annotated[
        int, typer.Option(help="Updates of every candidate in the first round, or before a trial is pruned.")
    ] = 500,
    keep: Annotated[float, typer.Option(help="Share of the candidates that enter the next round.")] = 0.33,
    finalists: Annotated[int, typer.Option(help="Candidates in the last round.")] = FINALISTS,
    seeds: Annotated[int, typer.Option(help="Seeds of each candidate in the last round, starting at --seed.")] = 1,
    finish: Annotated[str, typer.Option(help="Schedule of the last round: linear (to zero) or constant.")] = "linear",
    sampler: Annotated[
        str, typer.Option(help="rounds: all combinations, successive halving. optuna: trials drawn from ranges.")
    ] = "rounds",
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="NAME=LOW:HIGH", help="Numbers that optuna draws from. Repeatable."),
    ] = None,
    each: Annotated[
        int | None, typer.Option(help="Updates of a trial of optuna that is not pruned. Default: a 20th of --updates.")
    ] = None,
    study: Annotated[
        str | None, typer.Option(help="URL of optuna's study. Default: an SQLite file in the folder of the sweep.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", "--batch-size", help="Sequences in a batch.")] = 50,
    seconds: Annotated[float | None, typer.Option(help="Stop after this time; the same command continues.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of the sweep. Default: runs/sweep/TASK.")] = None,
    data: Data = None,
    task_option: TaskOptions = None,
    system_option: SystemOptions = None,
    quiet: Quiet = False,
    *,
    place: LaunchPlace,
    **settings: Any,
) -> None:
    """Find the best map, cell and activation for a task: all candidates train briefly, the better ones longer.

    If it was interrupted, the same command continues. On a GPU, candidates of the same shape train side by side. See
    docs/sweep.md. With --sampler optuna the same command in several processes works on one study.

    Example:  evenflow sweep mnist --parameters 137000 --updates 200000 --seeds 3 --data ~/sets

    Example:  evenflow sweep digits --updates 20000 --hidden 32 --first 100 --cells elman,gated --lrs 1e-2,1e-3

    Example:  evenflow sweep digits --sampler optuna --updates 20000 --first 100 --maps svd --cells elman --hidden 32
    --range margin=0.01:0.5 --range dropout=0:0.5

    Example:  evenflow sweep digits --updates 20000 --hidden 32 --first 100 --on ray --gpus-each 0.25
    """
    from evenflow.lab.sweep import Axes, Range, Rules, SearchRules, SearchSpace, search
    from evenflow.lab.sweep import sweep as run_sweep

    one_of("--sampler", sampler, ("rounds", "optuna"))
    optuna = sampler == "optuna"
    for name, given, needs in (
        ("--range", ranges and not optuna, "optuna"),
        ("--each", each is not None and not optuna, "optuna"),
        ("--study", study is not None and not optuna, "optuna"),
        ("--seeds", seeds != 1 and optuna, "rounds"),
        ("--finalists", finalists != FINALISTS and optuna, "rounds"),
        ("--on ray", not isinstance(place, Here) and optuna, "rounds"),
    ):
        if given:
            raise ValueError(f"{name} goes with --sampler {needs}, got --sampler {sampler}")
    drawn = {name: Range.read(name, text) for name, text in _pairs(ranges)}
    if optuna and lrs is None:
        drawn.setdefault("lr", Range.read("lr", "1e-4:1e-1"))
    axes = Axes(
        maps=_words(maps),
        cells=_words(cells),
        activations=_words(activations),
        hidden=None if hidden is None else parse_numbers("--hidden", hidden, whole=True),
        optimizers=_words(optimizers),
        lrs=parse_numbers("--lrs", lrs or "1e-2,1e-3,1e-4"),
        system=parse_options("--system-option", system_option),
    )
    table, where = task_table(task, task_option, data), folder or Path("runs") / "sweep" / task_name(task)
    common: dict[str, Any] = {
        "parameters": parameters,
        "training": {"batch_size": batch} | {key: value for key, value in settings.items() if value is not None},
        "seconds": seconds,
        "progress": not quiet,
        "announce": say,
    }
    if optuna and "batch_size" in drawn:
        del common["training"]["batch_size"]
    with same_command_continues():
        if optuna:
            own = SearchRules(updates, each, first, keep, finish)
            show_search(search(table, SearchSpace(axes, drawn), own, where, study=study, **common), where)
        else:
            rules = Rules(updates, first, keep, seeds, finalists, finish)
            show_sweep(run_sweep(table, axes, rules, where, place=place, **common))


def show_sweep(result: Sweep) -> None:
    """Print the leaderboard, the cost of the sweep, and where its files are."""
    tested = any(standing.test_metric == standing.test_metric for standing in result.standings)
    several = len({standing.point.optimizer for standing in result.standings}) > 1
    columns = ["rank", "map", "cell", "activation", "hidden", "parameters", *["optimizer"] * several, "lr", "updates"]
    numbers = ("rank", "hidden", "parameters", "lr", "updates", "validation", "test")
    table = new_table(*columns, "validation", *["test"] * tested, "state", right=numbers)
    table.padding = (0, 1, 0, 0)  # the table has many columns
    for rank, standing in enumerate(result.standings[:ROWS], 1):
        point = standing.point
        test = (
            _number(standing.test_metric) if standing.state == "finished" else ""
        )  # others were not trained to the end
        table.add_row(
            str(rank),
            point.map,
            short_name(point.cell),
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
    say(f"Validation{' and test' if tested else ''}: {result.metric_name}, of the best weights.")
    if len(result.standings) > ROWS:
        say(f"{len(result.standings) - ROWS} more in sweep.json.")
    spent = f"{result.updates:,} updates in {result.seconds:.0f} seconds"
    say(f"{spent}." if result.finished else f"Stopped after {spent}: the same command goes on.")
    best = result.best.folders
    page = f"   The page of the best:  evenflow report {best[0]}" if best else ""
    say(f"The sweep: {result.folder / 'sweep.json'}{page}")


def _number(value: float) -> str:
    return f"{value:.4g}" if value == value else ""


def _pairs(ranges: Sequence[str] | None) -> list[tuple[str, str]]:
    """Names and texts of ranges."""
    pairs = [(name.strip(), text) for name, _, text in (each.partition("=") for each in ranges or ())]
    for i, (name, text) in enumerate(pairs):
        if not name or not text:
            raise ValueError(f"--range must be NAME=LOW:HIGH, got {(ranges or ())[i]!r}")
        if name in dict(pairs[:i]):
            raise ValueError(f"--range must name {name} once, got it again in {(ranges or ())[i]!r}")
    return pairs


def _words(text: str) -> list[str]:
    """Split a text at the commas that are not in brackets."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]
