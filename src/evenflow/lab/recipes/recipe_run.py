"""Runs a recipe: trains every row, seed and learning rate in a folder of its own, then writes record and page."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from evenflow.lab.launches import Here, Launch, LaunchPlace
from evenflow.lab.report.numbers import duration
from evenflow.lab.training import Settings, build
from evenflow.lab.training.stopping import TimeUp, check_stop, time_limit

from . import cost
from .attempts import (
    RowOutcome,
    best_attempt,
    check_folder,
    has_ended,
    missing_data,
    search_ended,
    train_job,
)
from .configs import RecipeJob, RecipePlan, epochs_to_updates, plan, updates_of
from .labels_at_scale import at_scale, labels_at
from .measures import needs_training
from .recipe_catalog import load
from .recipe_page import write_page
from .recipe_populations import population_launches
from .recipe_record import write_record
from .reproduction import Reproduction, judge_outcomes
from .schema import Recipe


def reproduce(
    recipe: str | Recipe,
    scale: str = "quick",
    *,
    folder: str | os.PathLike[str] | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    rows: Sequence[str] | None = None,
    task: str | None = None,
    data: str | None = None,
    device: str | None = None,
    limit: float | None = None,
    place: LaunchPlace | None = None,
    progress: bool = True,
    announce: Callable[[str], None] = lambda _: None,
) -> Reproduction:
    """Train what a document trained, and compare the results with those it printed.

    Args:
        recipe: name of a recipe, as document/name, or a recipe of your own.
        scale: "quick" (minutes on two CPU cores) or "full" (the document's budget).
        folder: gets a folder for each row and seed, the page and the record. Default: runs/DOCUMENT/NAME/SCALE.
            Finished runs in it are read back, interrupted ones resume.
        seeds: number of seeds. Default: the recipe's.
        seed: the first seed, to add others to those that have run elsewhere.
        rows: labels of the rows to run. Default: all rows of the scale. A row whose sequences are shorter at this scale
            says so: "LSTM, T=5000" becomes "LSTM, T=100 for 5000"; either label is taken.
        task: name of a task that replaces the recipe's: "har", the published windows, for "har-rebuilt".
        data: the data folder.
        device: replaces the recipe's device, which is "auto".
        limit: seconds after which to stop. The record then holds the rows and seeds that have ended; the same call
            continues with the others.
        place: where the runs train: `launches.OnRay` for the cores and GPUs of a cluster. Default: this process.
        progress: whether to show progress bars.
        announce: called with a sentence before each run.

    A row that diverges or whose data is missing is an outcome, not an error.

        >>> result = reproduce("galvan/figure-3.1", folder="runs/figure")
        >>> result.cells["radius 0.8", "log10(first / last component)"].measured_text()
    """
    recipe = load(recipe) if isinstance(recipe, str) else recipe
    labels, recipe = labels_at(recipe, scale), at_scale(recipe, scale)
    rows = None if rows is None else [labels.get(row, row) for row in rows]
    parent = Path("runs") / recipe.document / recipe.name / scale if folder is None else Path(folder)
    runs = plan(recipe, scale, parent, seeds=seeds, seed=seed, rows=rows, task=task, data=data, device=device)
    where = Here() if place is None else place
    check_plan(runs, where)
    outcomes = run_all(runs, where, progress, announce, limit)
    result = judge_outcomes(recipe, scale, parent, outcomes)
    result.left = len(runs.attempts) - len(outcomes)
    if outcomes:
        result.record, result.page = write_record(result), write_page(result)
    return result


def check_plan(runs: RecipePlan, place: LaunchPlace) -> None:
    """Raise a ValueError for a wrong setting in any row before the first run starts; missing data is no error."""
    checked: set[str] = set()
    for job in runs.jobs():
        # Seeds and learning rates of a row cannot be wrong by themselves.
        settings = {k: v for k, v in job.config["training"].items() if k not in ("seed", "lr")}
        key = repr((job.config["task"], job.config["system"], settings))
        if key in checked:
            continue
        checked.add(key)
        place.check_device(str(settings.get("device", "auto")))
        task = job.make_task()
        if missing_data(task):
            continue
        config = epochs_to_updates(job.config, task)
        Settings.from_dict(config["training"]).for_task(task)
        build(task, config["system"], job.seed)


def run_all(
    runs: RecipePlan,
    place: LaunchPlace,
    progress: bool,
    announce: Callable[[str], None],
    limit: float | None = None,
) -> list[RowOutcome]:
    """The outcome of every row and seed. After `limit` seconds no run starts, and only those that have ended are
    returned."""
    recipe, outcomes = runs.recipe, {}
    with suppress(TimeUp), time_limit(limit):
        if needs_training(recipe):
            together = population_launches(runs, place)
            place.run(together, started=lambda launch: announce(launch.title), progress=progress)
            _RemainingRuns(runs, announce).run(place, progress)
        for index, group in enumerate(runs.attempts):
            check_stop()
            if not needs_training(recipe):
                announce(f"{index + 1} of {len(runs.attempts)}: {group[0].title}")
            outcomes[index] = best_attempt(recipe, group)
    for index, group in enumerate(runs.attempts):  # after the time limit, those that have ended
        if index not in outcomes and search_ended(recipe, group):
            outcomes[index] = best_attempt(recipe, group)
    return [outcomes[index] for index in sorted(outcomes)]


class _RemainingRuns:
    """The runs that have not ended; of a search until one converges, one learning rate after the other."""

    def __init__(self, runs: RecipePlan, announce: Callable[[str], None]) -> None:
        self.recipe, self.attempts, self._announce = runs.recipe, runs.attempts, announce
        self._guesses = [sum(cost.training_seconds(job.config) for job in group) for group in self.attempts]
        self._places = {job.folder: index for index, group in enumerate(self.attempts) for job in group}
        self._start, self._finished = time.monotonic(), set[int]()

    def run(self, place: LaunchPlace, progress: bool) -> None:
        """Train them."""
        launches = [launch for index in range(len(self.attempts)) for launch in self._first(index)]
        place.run(launches, started=self._say, ended=self._ended, progress=progress)

    def _first(self, index: int) -> list[Launch]:
        group = self.attempts[index]
        for job in group:
            check_folder(job)
        if missing_data(group[0].make_task()):
            return []
        if self.recipe.search == "until-converged":
            return self._next(index)
        return [_launch(job) for job in group if not has_ended(job)]

    def _next(self, index: int) -> list[Launch]:
        if search_ended(self.recipe, self.attempts[index]):
            return []
        return [_launch(next(job for job in self.attempts[index] if not has_ended(job)))]

    def _ended(self, launch: Launch) -> list[Launch]:
        index = self._places[launch.folders[0]]
        following = self._next(index) if self.recipe.search == "until-converged" else []
        if not following:
            self._finished.add(index)
        return following

    def _say(self, launch: Launch) -> None:
        index = self._places[launch.folders[0]]
        spent, finished = time.monotonic() - self._start, sum(self._guesses[i] for i in self._finished)
        left = sum(guess for i, guess in enumerate(self._guesses) if i >= index)
        rest = f", about {duration(spent / finished * left, rough=True)} left" if finished and spent > 1 else ""
        self._announce(f"{index + 1} of {len(self.attempts)}: {launch.title}{rest}")


def _launch(job: RecipeJob) -> Launch:
    return Launch(functools.partial(train_job, job), (job.folder,), job.title, updates_of(job))
