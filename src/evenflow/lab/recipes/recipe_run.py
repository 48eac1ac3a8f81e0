"""Runs a recipe: trains every row, seed and learning rate in a folder of its own, then writes record and page."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from evenflow.lab.report.numbers import duration
from evenflow.lab.training import Settings, build
from evenflow.lab.training.stopping import TimeUp, check_stop, time_limit

from . import cost
from .attempts import RowOutcome, best_attempt, missing_data, search_ended
from .configs import RecipeJob, RecipePlan, epochs_to_updates, plan
from .labels_at_scale import at_scale, labels_at
from .measures import needs_training
from .recipe_catalog import load
from .recipe_page import write_page
from .recipe_populations import train_populations
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
    check_plan(runs)
    outcomes = run_all(runs, progress, announce, limit)
    result = judge_outcomes(recipe, scale, parent, outcomes)
    result.left = len(runs.attempts) - len(outcomes)
    if outcomes:
        result.record, result.page = write_record(result), write_page(result)
    return result


def check_plan(runs: RecipePlan) -> None:
    """Raise a ValueError for a wrong setting in any row before the first run starts; missing data is no error."""
    checked: set[str] = set()
    for job in runs.jobs():
        # Seeds and learning rates of a row cannot be wrong by themselves.
        settings = {k: v for k, v in job.config["training"].items() if k not in ("seed", "lr")}
        key = repr((job.config["task"], job.config["system"], settings))
        if key in checked:
            continue
        checked.add(key)
        task = job.make_task()
        if missing_data(task):
            continue
        config = epochs_to_updates(job.config, task)
        Settings.from_dict(config["training"]).for_task(task)
        build(task, config["system"], job.seed)


def run_all(
    runs: RecipePlan, progress: bool, announce: Callable[[str], None], limit: float | None = None
) -> list[RowOutcome]:
    """The outcome of every row and seed. After `limit` seconds no run starts, and only those that have ended are
    returned."""
    recipe, total = runs.recipe, len(runs.attempts)
    trains = needs_training(recipe)
    guesses = [sum(cost.training_seconds(job.config) if trains else 1.0 for job in group) for group in runs.attempts]
    start, outcomes = time.monotonic(), {}
    with suppress(TimeUp), time_limit(limit):
        train_populations(runs, progress, announce)
        for index, group in enumerate(runs.attempts):
            check_stop()
            spent, finished = time.monotonic() - start, sum(guesses[:index])
            rest = duration(spent / finished * sum(guesses[index:]), rough=True) if finished and spent > 1 else ""

            def say(job: RecipeJob, at: int = index + 1, left: str = f", about {rest} left" if rest else "") -> None:
                announce(f"{at} of {total}: {job.title}{left}")

            outcomes[index] = best_attempt(recipe, group, progress, say)
    # After the time limit, runs of a population may have ended that no attempt has read back yet.
    for index, group in enumerate(runs.attempts):
        if index not in outcomes and search_ended(recipe, group):
            outcomes[index] = best_attempt(recipe, group, progress, lambda _: None)
    return [outcomes[index] for index in sorted(outcomes)]
