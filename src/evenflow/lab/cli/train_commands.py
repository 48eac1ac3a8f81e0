"""The commands `train` and `resume`: one run, or several seeds trained side by side."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evenflow.lab.launches import Here, Launch, LaunchPlace
from evenflow.lab.terminal import new_table, say, show
from evenflow.lab.training.seed_folders import train_seeds
from evenflow.runtime.import_path import short_name

from .application import app
from .options import (
    Data,
    Folder,
    Hidden,
    MovedData,
    Quiet,
    SystemOptions,
    TaskOptions,
    parse_options,
    takes_settings,
    task_name,
    task_table,
)
from .place_options import takes_place

if TYPE_CHECKING:
    from evenflow.lab.training import Result


@app.command()
@takes_place
@takes_settings()
def train(
    task: Annotated[str, typer.Argument(help="The task; see `evenflow tasks`.")],
    system: Annotated[str, typer.Argument(help="The system to train; see `evenflow systems`.")],
    folder: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/TASK-SYSTEM.")] = None,
    hidden: Hidden = 128,
    data: Data = None,
    seeds: Annotated[int, typer.Option(min=1, help="Train this many seeds side by side, starting at --seed.")] = 1,
    side_by_side: Annotated[
        int | None, typer.Option(min=1, help="Most seeds in one launch, which train as a population. Default: all.")
    ] = None,
    task_option: TaskOptions = None,
    system_option: SystemOptions = None,
    quiet: Quiet = False,
    *,
    place: LaunchPlace,
    **settings: Any,
) -> None:
    """Train one system on one task. The run folder can be resumed and reported on.

    TASK is a name; a file of your own, csv:FILE (one row per step; columns sequence, target, and the inputs) or
    npz:FILE (arrays x, y, lengths), see docs/data.md; or a class of your own, module:Class. SYSTEM is a name, or a cell
    or a layer of your own, module:name. The module may lie in the current folder. See docs/cells.md.

    Example:  evenflow train adding sgornn --hidden 64 --lr 0.01 --optimizer rmsprop -t length=200 --probe-every 50

    Example:  evenflow train adding sgornn --hidden 64 --lr 0.001 --from runs/adding-sgornn --folder runs/finer

    Example:  evenflow train csv:motion.csv lstm --hidden 32 --epochs 20 -t target=activity

    Example:  evenflow train adding sgornn --seeds 32 --side-by-side 8 --on ray --gpus-each 1

    Example:  evenflow train my_package.tasks:Bursts my_package.cells:mgu --hidden 64 -t length=200
    """
    from evenflow.lab.training import train as train_run

    folder = folder or Path("runs") / f"{task_name(task)}-{short_name(system)}"
    config = {
        "task": task_table(task, task_option, data),
        "system": {"name": system, "hidden_size": hidden, **parse_options("--system-option", system_option)},
        "training": {key: value for key, value in settings.items() if value is not None},
    }
    if seeds > 1:
        _train_seeds(config, seeds, folder, quiet, place, side_by_side)
    elif not isinstance(place, Here) or side_by_side is not None:
        raise ValueError(f"{'--side-by-side' if isinstance(place, Here) else '--on ray'} needs --seeds above 1, got 1")
    else:
        _show_result(train_run(config, folder, progress=not quiet), folder)


@app.command()
@takes_place
def resume(
    folder: Folder,
    data: MovedData = None,
    steps: Annotated[
        int | None, typer.Option(help="Make this many updates in all, more than the run began with.")
    ] = None,
    allow_changes: Annotated[
        list[str] | None,
        typer.Option(help="Settings, separated by commas, whose edits in config.toml are meant."),
    ] = None,
    quiet: Quiet = False,
    *,
    place: LaunchPlace,
) -> None:
    """Continue a run that was killed or interrupted. The result is bit-identical to an uninterrupted run.

    With --steps a finished run goes on as well. A schedule that depends on the number of updates continues as in a run
    of so many, and a warning says at which learning rate.

    A config.toml that was edited since the last checkpoint is refused. Settings such as steps, patience or clip_norm
    may change, if they are named in --allow-changes; the learning rate, the task and the system may not.

    FOLDER may also be the folder of `evenflow train --seeds N`; all its seeds continue. Use --data if the data has
    moved; a file of your own must have the same content as before.

    Example:  evenflow resume runs/adding-sgornn

    Example:  evenflow resume runs/adding-sgornn --steps 20000
    """
    from evenflow.lab.training import Run
    from evenflow.lab.training import resume as resume_run
    from evenflow.lab.training.changed_config import allow_changes as allow_changes_of
    from evenflow.lab.training.config import relocate_data
    from evenflow.lab.training.seed_folders import resumed_folders, side_by_side

    allowed = [name.strip() for part in allow_changes or () for name in part.split(",")]
    if not (folder / "config.toml").is_file() and (seed_folders := resumed_folders(folder)):
        for path in seed_folders:
            allow_changes_of(path, allowed)
        if steps is not None:
            _lengthen_seeds(seed_folders, steps, data)
        configs = [dict(relocate_data(Run(path).config, data)) for path in seed_folders]
        _show_seeds(configs, seed_folders, folder, quiet, place, side_by_side(folder))
    elif not isinstance(place, Here):
        raise ValueError(f"--on ray needs the folder of several seeds, got {str(folder)!r}")
    else:
        _show_result(resume_run(folder, data=data, steps=steps, allow_changes=allowed, progress=not quiet), folder)


def _lengthen_seeds(folders: Sequence[Path], steps: int, data: Path | None) -> None:
    """Give the runs of all seeds more updates, or none of them."""
    from evenflow.lab.training import Run
    from evenflow.lab.training.config import read_config, relocate_data
    from evenflow.lab.training.longer_run import lengthen, longer_config

    runs = [Run(folder) for folder in folders]
    configs = [longer_config(run, steps) for run in runs]
    tasks = [read_config(relocate_data(config, data))[0] for config in configs]
    for run, config, task in zip(runs, configs, tasks, strict=True):
        lengthen(run, config, task)


def _train_seeds(
    config: dict[str, Any], count: int, folder: Path, quiet: bool, place: LaunchPlace, size: int | None
) -> None:
    """Train a config with several seeds, `size` of them in one population; None for all."""
    from evenflow.lab.training.seed_folders import seed_folder, seeds_written
    from evenflow.systems import NETWORKS

    if (system := config["system"]["name"]) in NETWORKS:
        raise ValueError(f"--seeds must be 1 for {system}: networks without time train one seed at a time, got {count}")
    place.check_device(config["training"]["device"])
    first = config["training"]["seed"]
    seeds = range(first, first + count)
    configs = [config | {"training": config["training"] | {"seed": seed}} for seed in seeds]
    with seeds_written(folder, config, seeds, size):
        _show_seeds(configs, [seed_folder(folder, seed) for seed in seeds], folder, quiet, place, size)


def _show_seeds(
    configs: Sequence[dict[str, Any]],
    folders: Sequence[Path],
    folder: Path,
    quiet: bool,
    place: LaunchPlace,
    size: int | None,
) -> None:
    """Train or resume configs that differ in their seed, and print the result of each and the mean."""
    import numpy as np

    from evenflow.lab.training import NonFiniteLoss, Run, read_config

    task, _, settings = read_config(configs[0])
    updates = settings.for_task(task).steps
    launches = []
    for at in range(0, len(configs), size or len(configs)):
        part = slice(at, at + (size or len(configs)))
        work = functools.partial(train_seeds, configs[part])
        seeds = ", ".join(str(config["training"].get("seed", 0)) for config in configs[part])
        launches.append(Launch(work, tuple(folders[part]), f"seeds {seeds}", updates * len(configs[part])))
    place.run(launches, progress=not quiet)
    table = new_table("seed", "best validation", "test", "verdict")
    metrics, tested = [], False
    for config, path in zip(configs, folders, strict=True):
        run, seed = Run(path), str(config["training"].get("seed", 0))
        if run.diverged:
            table.add_row(seed, "", "", "diverged")
            continue
        best = run.status["best_metric"]
        tested = "test_metric" in run.status
        metrics.append(run.status["test_metric"] if tested else best)
        test = f"{metrics[-1]:.4g}" if tested else ""
        table.add_row(seed, f"{best:.4g}", test, "solved" if run.status["solved"] else "not solved")
    show(table)
    if not metrics:
        raise NonFiniteLoss("all seeds diverged: try a smaller lr or a clip_norm")
    say(task.criterion)
    metric_name = f"{'test' if tested else 'best validation'} {task.metric_name}"
    error = f" ± {np.std(metrics, ddof=1) / math.sqrt(len(metrics)):.2g} (standard error)" if len(metrics) > 1 else ""
    say(f"Mean {metric_name} of {len(metrics)}: {np.mean(metrics):.4g}{error}.")
    say(f"The runs: {folder}   Their page:  evenflow report {folder}")
    if lost := len(configs) - len(metrics):
        raise NonFiniteLoss(f"{lost} of {len(configs)} seeds diverged: try a smaller lr or a clip_norm")


def _show_result(result: Result, folder: Path) -> None:
    """Print the best validation, the last one, whether the task is solved, and the test."""
    from evenflow.lab.tasks.own_data import OwnData
    from evenflow.lab.training.metrics import worsened

    name = result.task.metric_name

    def shown(metric: float, loss: float) -> str:
        same = math.isclose(metric, loss, rel_tol=1e-4)  # of some tasks the metric is the loss
        return f"{name} {metric:.4g}" + ("" if same else f", loss {loss:.4g}")

    best = shown(result.best_metric, result.best_loss)
    say(f"{result.steps} updates. Best validation: {best}, at update {result.best_step}.")
    if result.best_step != result.steps:
        say(f"The last validation: {shown(result.valid_metric, result.valid_loss)}.")
    say(f"{'Solved' if result.solved else 'Not solved'}. {result.task.criterion}")
    if (change := worsened(result.history)) is not None:
        say(f"It ended worse than it began: training loss {change[1]:.4g} after {change[0]:.4g}; try a smaller --lr.")
    elif result.best_loss >= (guess := result.task.baseline):
        say(f"The validation loss is no better than {guess:.4g}, the best guess without memory.")
    if result.test_metric == result.test_metric:
        say(f"On the test part: {shown(result.test_metric, result.test_loss)}.")
    if result.task.note:
        say(f"The data: {result.task.note}.")
    say(f"The run: {folder}   Its page:  evenflow report {folder}")
    if isinstance(result.task, OwnData):
        say(f"Its predictions:  evenflow predict {folder} NEW.csv --out predictions.csv")
