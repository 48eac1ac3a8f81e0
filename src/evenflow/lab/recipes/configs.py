"""The runs of a recipe: for each row, seed and learning rate a config and a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenflow.checks import whole_number
from evenflow.lab import tasks
from evenflow.lab.tasks import Task
from evenflow.lab.tasks.curriculum import Curriculum
from evenflow.lab.tasks.data_set import FileData
from evenflow.lab.training import Settings

from .cost import METHODS, time_steps
from .schema import TABLES, Recipe, RecipeRow, folder_name

CHECKPOINT_STEPS = 1e6  # time steps between two checkpoints at full scale: about half a minute on a GPU

SEED = "{seed}"  # as an option of a task: the seed of the run

RunConfig = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class RecipeJob:
    """One run of a recipe.

    Attributes:
        row, seed: what is trained.
        lr: the learning rate of a search; None if the row sets its own.
        config: the tables task, system and training.
        folder: the run folder.
    """

    row: RecipeRow
    seed: int
    lr: float | None
    config: RunConfig
    folder: Path

    @property
    def title(self) -> str:
        return f"{self.row.label}, seed {self.seed}" + ("" if self.lr is None else f", lr {self.lr:g}")

    def make_task(self) -> Task:
        options = dict(self.config["task"])
        return tasks.make(options.pop("name"), **options)


@dataclass(frozen=True)
class RecipePlan:
    """All runs of a recipe at a scale: for each row and seed one job per learning rate, in the order of the search."""

    recipe: Recipe
    scale: str
    folder: Path
    attempts: tuple[tuple[RecipeJob, ...], ...]

    def jobs(self) -> Iterator[RecipeJob]:
        for group in self.attempts:
            yield from group


def plan(
    recipe: Recipe,
    scale: str,
    folder: Path,
    *,
    seeds: int | None = None,
    seed: int | None = None,
    rows: Sequence[str] | None = None,
    task: str | None = None,
    data: str | None = None,
    device: str | None = None,
) -> RecipePlan:
    """The runs of a recipe, in folders below `folder`; the other arguments are those of `reproduce`."""
    selected = recipe.rows_at(scale)
    if rows is not None:
        requested = [recipe.row(label) for label in rows]
        selected = [row for row in recipe.rows if row in requested]
    attempts = []
    for row in selected:
        for number in seeds_of(recipe, scale, seeds, seed):
            parent = folder / folder_name(row.label) / f"seed-{number}"
            group = []
            for lr in recipe.scale(scale).lrs or row.lrs or recipe.lrs or (None,):
                config = config_of(recipe, row, scale, seed=number, lr=lr, task=task, data=data, device=device)
                group.append(RecipeJob(row, number, lr, config, parent if lr is None else parent / f"lr-{lr:g}"))
            attempts.append(tuple(group))
    return RecipePlan(recipe, scale, folder, tuple(attempts))


def seeds_of(recipe: Recipe, scale: str, count: int | None = None, first: int | None = None) -> tuple[int, ...]:
    """The seeds of a recipe at a scale: its own, `count` of them, or those from `first` on."""
    own = recipe.scale(scale).seeds or recipe.seeds
    if count is not None:
        whole_number("seeds", count, 1)
    if first is not None:
        whole_number("seed", first, 0)
        return tuple(range(first, first + (count or len(own))))
    if count is None:
        return own
    return (own + tuple(range(own[-1] + 1, own[-1] + 1 + count)))[:count]


def config_of(
    recipe: Recipe,
    row: RecipeRow,
    scale: str,
    *,
    seed: int = 1,
    lr: float | None = None,
    task: str | None = None,
    data: str | None = None,
    device: str | None = None,
) -> RunConfig:
    """The config of one run; later settings override earlier ones: recipe, the row's sets, row, scale, its sets."""
    change = recipe.scale(scale)
    layers: list[Mapping[str, Any]] = [vars(recipe), *(recipe.sets[name] for name in row.use), vars(row), vars(change)]
    layers += [change.sets[name] for name in row.use if name in change.sets]
    config = {name: {k: v for layer in layers for k, v in layer.get(name, {}).items()} for name in TABLES}
    training = config["training"]
    if "epochs" in training and "steps" in training:
        # A scale may count updates where the recipe counts epochs, and the other way round: the later layer decides.
        words = [word for layer in layers for word in ("epochs", "steps") if word in layer.get("training", {})]
        del training["epochs" if words[-1] == "steps" else "steps"]
    training["seed"] = seed
    # The seed of a run may be that of a choice in its data too.
    config["task"] = {k: seed if v == SEED else v for k, v in config["task"].items()}
    if lr is not None:
        training["lr"] = lr
    if device is not None:
        training["device"] = device
    if task is not None:
        config["task"]["name"] = task
    if data is not None and reads_files(config["task"]):
        config["task"]["data"] = data
    if scale == "full":
        training["checkpoint_every"] = _checkpoint_every(config)
    return config


def _checkpoint_every(config: RunConfig) -> int:
    """Updates between two checkpoints: the recipe's, or fewer if updates are so long that an interruption would cost
    minutes. A multiple of `log_every`, so that no rows are added to the log."""
    training = config["training"]
    steps = max(1, time_steps(config["task"])) * METHODS.get(str(training.get("optimizer")), 1.0)
    log_every = int(training.get("log_every", 10))
    most = max(1, int(CHECKPOINT_STEPS / steps) // log_every) * log_every
    return min(int(training.get("checkpoint_every", 1000)), most)


def reads_files(table: Mapping[str, Any]) -> bool:
    """Whether the task of a config reads a data folder."""
    name = str(table.get("name"))
    if name == Curriculum.name:
        name = str(table.get("task", ""))
    return issubclass(tasks.TASKS.get(name, Task), FileData)


def updates_of(job: RecipeJob) -> int:
    """The updates of a run."""
    task = job.make_task()
    return Settings.from_dict(epochs_to_updates(job.config, task)["training"]).for_task(task).steps


def epochs_to_updates(config: RunConfig, task: Task) -> RunConfig:
    """The config with the recipes' setting ``decay_every_epochs`` replaced by ``decay_every`` of `Settings`."""
    training = dict(config["training"])
    epochs = training.pop("decay_every_epochs", None)
    if epochs is not None:
        per_epoch = task.epoch_steps(int(training.get("batch_size", 50)))
        if per_epoch is None:
            raise ValueError(f"decay_every_epochs goes with a data set, got {epochs} with task {task.name}")
        training["decay_every"] = epochs * per_epoch
    return {**config, "training": training}
