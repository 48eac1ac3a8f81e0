"""Training: one run, several seeds, a resumption, a comparison."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from evenflow.lab.cli.app import app, said_again
from evenflow.lab.cli.options import (
    Data,
    Folder,
    Hidden,
    MovedData,
    Quiet,
    SystemOptions,
    TaskOptions,
    numbers,
    pairs,
    short,
    takes_settings,
    task_table,
)
from evenflow.lab.terminal import new_table, say, show, show_attempts


@app.command()
@takes_settings()
def train(
    task: Annotated[str, typer.Argument(help="What to learn; see `evenflow tasks`.")],
    system: Annotated[str, typer.Argument(help="What learns it; see `evenflow systems`.")],
    folder: Annotated[Path | None, typer.Option(help="The run's folder; runs/TASK-SYSTEM if not given.")] = None,
    hidden: Hidden = 128,
    data: Data = None,
    seeds: Annotated[int, typer.Option(min=1, help="Train this many seeds side by side, from --seed on.")] = 1,
    task_option: TaskOptions = None,
    system_option: SystemOptions = None,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Train one system on one task, in a run folder that can be resumed and reported on.

    A task is a name, or a file of your own: csv:FILE (one row a step; columns sequence, target, and the inputs) or
    npz:FILE (arrays x, y, lengths). See docs/data.md.

    Example:  evenflow train adding sgornn --hidden 64 --lr 0.01 --optimizer rmsprop -t length=200 --probe-every 50

    Example:  evenflow train csv:motion.csv lstm --hidden 32 --epochs 20 -t target=activity
    """
    from evenflow.lab.training import train as run

    folder = folder or Path("runs") / f"{short(task)}-{system}"
    config = {
        "task": task_table(task, task_option, data),
        "system": {"name": system, "hidden_size": hidden, **pairs("--system-option", system_option)},
        "training": {key: value for key, value in settings.items() if value is not None},
    }
    if seeds > 1:
        train_seeds(config, seeds, folder, quiet)
    else:
        finish(run(config, folder, progress=not quiet), folder)


def train_seeds(config: dict[str, Any], seeds: int, folder: Path, quiet: bool) -> None:
    """Train the config with several seeds as one population."""
    from evenflow.lab.training.seed_folders import noted, place
    from evenflow.systems import NETWORKS

    if (system := config["system"]["name"]) in NETWORKS:
        raise ValueError(f"--seeds must be 1 for {system}: networks without time train one seed at a time, got {seeds}")
    first = config["training"]["seed"]
    numbers = range(first, first + seeds)
    configs = [config | {"training": config["training"] | {"seed": seed}} for seed in numbers]
    with noted(folder, config, numbers):
        show_seeds(configs, [place(folder, seed) for seed in numbers], folder, quiet)


def show_seeds(
    configs: list[dict[str, Any]], folders: list[Path], folder: Path, quiet: bool, resume: bool = False
) -> None:
    """Train or go on with configs that differ in their seed, and print each and their mean."""
    import numpy as np

    from evenflow.lab.training import NonFiniteLoss, train_population

    numbers = [config["training"].get("seed", 0) for config in configs]
    results = train_population(configs, folders, resume=resume, progress=not quiet)
    table = new_table("seed", "validation", "test", "verdict")
    measured = []
    for seed, result in zip(numbers, results, strict=True):
        if isinstance(result, NonFiniteLoss):
            table.add_row(str(seed), "", "", "diverged")
            continue
        tested = result.test_metric == result.test_metric
        measured.append(result.test_metric if tested else result.best_metric)
        test = f"{result.test_metric:.4g}" if tested else ""
        table.add_row(str(seed), f"{result.best_metric:.4g}", test, "solved" if result.solved else "not solved")
        name = f"{'test' if tested else 'best validation'} {result.task.metric_name}"
    show(table)
    if not measured:
        raise NonFiniteLoss("all seeds diverged: try a smaller lr or a clip_norm")
    say(f"Mean {name} of {len(measured)}: {np.mean(measured):.4g} ± {np.std(measured, ddof=len(measured) > 1):.2g}.")
    say(f"The runs: {folder}   Their page:  evenflow report {folder}/seed-* --out {folder}/report.html")


@app.command()
def resume(folder: Folder, data: MovedData = None, quiet: Quiet = False) -> None:
    """Go on with a run that was killed or interrupted; it ends as if it never had been.

    The folder of several seeds (`train --seeds`) is gone on with as a whole. --data is for data that has moved; a file
    of your own must be the same as before.

    Example:  evenflow resume runs/adding-sgornn
    """
    from evenflow.lab.training import Run
    from evenflow.lab.training import resume as run
    from evenflow.lab.training.lifecycle import placed
    from evenflow.lab.training.seed_folders import all_begun
    from evenflow.lab.training.train import found

    if not (folder / "config.toml").is_file() and (seeds := all_begun(folder)):
        configs = [dict(placed(Run(path).config, found(data))) for path in seeds]
        show_seeds(configs, seeds, folder, quiet, resume=True)
        return
    finish(run(folder, data=data, progress=not quiet), folder)


@app.command()
@takes_settings("lr")
def compare(
    task: Annotated[str, typer.Argument(help="What to learn; see `evenflow tasks`.")],
    systems: Annotated[list[str], typer.Argument(help="What learns it, one or more; see `evenflow systems`.")],
    lrs: Annotated[str, typer.Option(help="Learning rates every system may try, with commas.")] = "1e-2,1e-3,1e-4",
    until_solved: Annotated[bool, typer.Option(help="A system that solved the task tries no further rate.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Where runs and page go; runs/compare-TASK if not given.")] = None,
    hidden: Hidden = 128,
    data: Data = None,
    task_option: TaskOptions = None,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Train several systems on one task under the same rules, and set the best run of each side by side.

    Example:  evenflow compare adding rnn lstm sgornn --hidden 64 --steps 1000 -t length=200 --probe-every 50
    """
    from evenflow.lab.report import write_report
    from evenflow.lab.sweep.compare import compare as run

    folder = folder or Path("runs") / f"compare-{short(task)}"
    with said_again():
        best = run(
            task_table(task, task_option, data),
            [{"name": name, "hidden_size": hidden} for name in systems],
            {key: value for key, value in settings.items() if value is not None},
            numbers("--lrs", lrs),
            folder,
            until_solved=until_solved,
            progress=not quiet,
            announce=say,
        )
    show_attempts(best)
    tried = f"Best of the learning rates {lrs}"
    notes = ["" if math.isnan(attempt.lr) else f"{tried}: {attempt.lr:g}." for attempt in best]
    page = write_report([attempt.folder for attempt in best], folder / "report.html", notes=notes)
    say(f"The page: {page.resolve()}")


def finish(result: Any, folder: Path) -> None:
    verdict = "solved" if result.solved else "not solved"
    say(f"{result.steps} updates, validation loss {result.valid_loss:.4g} (best {result.best_loss:.4g}), {verdict}.")
    if result.test_metric == result.test_metric:
        say(f"On the test part: {result.task.metric_name} {result.test_metric:.4g}, loss {result.test_loss:.4g}.")
    if result.task.note:
        say(f"The data: {result.task.note}.")
    say(f"The run: {folder}   Its page:  evenflow report {folder}")
