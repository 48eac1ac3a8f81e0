"""From a recipe to the configs of its runs."""

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

from .labels import folder_name
from .schema import TABLES, Recipe, Row

CHECKPOINT_STEPS = 1e6  # time steps between two checkpoints at full scale: half a minute or so on a GPU


@dataclass(frozen=True)
class Job:
    """One run: a row, a seed and a learning rate (None: the row's own), its config and its folder."""

    row: Row
    seed: int
    lr: float | None
    config: dict[str, dict[str, Any]]
    folder: Path

    @property
    def title(self) -> str:
        return f"{self.row.label}, seed {self.seed}" + ("" if self.lr is None else f", lr {self.lr:g}")


@dataclass(frozen=True)
class Plan:
    """All runs of a recipe at a scale: for each row and seed, the attempts in the order of the rates."""

    recipe: Recipe
    scale: str
    folder: Path
    attempts: tuple[tuple[Job, ...], ...]

    def jobs(self) -> Iterator[Job]:
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
) -> Plan:
    """The runs of a recipe.

    Args:
        folder: what all run folders lie in.
        seeds: how many seeds; the recipe's own by default, counted on from its last where there are more.
        seed: the first of them, counted on from there.
        rows: labels; all rows of the scale by default.
        task: another task's name, in place of the recipe's own.
        data: the data folder, for tasks on real data.
    """
    chosen = recipe.chosen(scale)
    if rows is not None:
        wanted = [recipe.row(label) for label in rows]
        chosen = [row for row in recipe.rows if row in wanted]
    attempts = []
    for row in chosen:
        for own in seeds_of(recipe, scale, seeds, seed):
            where = folder / folder_name(row.label) / f"seed-{own}"
            group = []
            for lr in recipe.scale(scale).lrs or recipe.lrs or (None,):
                config = config_of(recipe, row, scale, seed=own, lr=lr, task=task, data=data, device=device)
                group.append(Job(row, own, lr, config, where if lr is None else where / f"lr-{lr:g}"))
            attempts.append(tuple(group))
    return Plan(recipe, scale, folder, tuple(attempts))


def seeds_of(recipe: Recipe, scale: str, count: int | None = None, first: int | None = None) -> tuple[int, ...]:
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
    row: Row,
    scale: str,
    *,
    seed: int = 1,
    lr: float | None = None,
    task: str | None = None,
    data: str | None = None,
    device: str | None = None,
) -> dict[str, dict[str, Any]]:
    """The three tables of one run: the recipe's, then those of the row's sets, the row's own and the scale's."""
    change = recipe.scale(scale)
    layers: list[Any] = [recipe, *(_Set(recipe.sets[name]) for name in row.use), row, change]
    layers += [_Set(change.sets[name]) for name in row.use if name in change.sets]
    config = {name: {k: v for layer in layers for k, v in getattr(layer, name).items()} for name in TABLES}
    training = config["training"]
    if "epochs" in training and "steps" in training:
        # A scale may count in updates what the recipe counts in epochs, and the other way round.
        last = next(word for layer in reversed(layers) for word in ("steps", "epochs") if word in layer.training)
        del training["epochs" if last == "steps" else "steps"]
    training["seed"] = seed
    if lr is not None:
        training["lr"] = lr
    if device is not None:
        training["device"] = device
    if task is not None:
        config["task"]["name"] = task
    if data is not None and reads_files(config["task"]):
        config["task"]["data"] = data
    if scale == "full":
        training["checkpoint_every"] = _often(config)
    return config


def _often(config: dict[str, dict[str, Any]]) -> int:
    """Updates between two checkpoints: the recipe's, or fewer where updates are so long that an interruption would cost
    minutes. A multiple of `log_every`, so that no rows are added."""
    from .cost import METHODS, time_steps

    training = config["training"]
    each = max(1, time_steps(config["task"])) * METHODS.get(str(training.get("optimizer")), 1.0)
    every = int(training.get("log_every", 10))
    most = max(1, int(CHECKPOINT_STEPS / each) // every) * every
    return min(int(training.get("checkpoint_every", 1000)), most)


class _Set:
    """The tables of a set, as attributes."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.task, self.system, self.training = (dict(table.get(name, {})) for name in TABLES)


def reads_files(table: Mapping[str, Any]) -> bool:
    """Whether the task of a config reads a data folder."""
    name = str(table.get("name"))
    if name == Curriculum.name:
        name = str(table.get("task", ""))
    return issubclass(tasks.TASKS.get(name, Task), FileData)


def counted(config: dict[str, dict[str, Any]], task: Task) -> dict[str, dict[str, Any]]:
    """The config with ``decay_every_epochs``, a word of recipes, as the updates that `Settings` knows."""
    training = dict(config["training"])
    epochs = training.pop("decay_every_epochs", None)
    if epochs is not None:
        each = task.epoch_steps(int(training.get("batch_size", 50)))
        if each is None:
            raise ValueError(f"decay_every_epochs goes with a data set, got {epochs} with task {task.name}")
        training["decay_every"] = epochs * each
    return {**config, "training": training}
