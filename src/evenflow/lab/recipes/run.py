"""Run a recipe: every row, seed and learning rate in a folder of its own, then the table, the page and the record."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from evenflow.lab.training import Settings, build
from evenflow.lab.training.stopping import TimeUp, check_stop, time_limit

from . import cost, verdict
from .attempts import Outcome, make_task, missing, settle, settled
from .catalog import load
from .configs import Job, Plan, counted, plan
from .schema import Recipe
from .side_by_side import together
from .verdict import Cell, Pair


@dataclass
class Reproduction:
    """A recipe that has run: cells by (row label, column name), the ordering, and where page and record lie.

    left: how many rows and seeds the time was too short for; page and record are None where none has ended.
    """

    recipe: Recipe
    scale: str
    folder: Path
    outcomes: list[Outcome]
    cells: dict[tuple[str, str], Cell]
    pairs: list[Pair]
    seconds: float
    page: Path | None = None
    record: Path | None = None
    left: int = 0

    def of(self, label: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.job.row.label == label]

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(outcome.job.row.label for outcome in self.outcomes))


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
    """Train what the document trained and set it beside what the document printed.

    Args:
        recipe: its name, or a recipe of one's own.
        scale: "quick" (minutes on two CPU cores) or "full" (the document's budget).
        folder: gets a folder for each row and seed, the page and the record; runs/DOCUMENT/NAME/SCALE by default. Runs
            finished there are read back, interrupted ones resumed.
        seeds: how many; the recipe's own by default.
        seed: the first of them, to add others to those that have been run elsewhere.
        rows: labels of the rows to run; all of the scale by default.
        task: another task's name in place of the recipe's own: "har", the published windows, for "har-rebuilt".
        data: the data folder.
        device: in place of the recipe's, which is "auto".
        limit: seconds after which to stop; the same call then goes on. The record holds the rows and seeds that ended.
        announce: told about each run before it starts.

    A row that diverges or whose data is missing is an outcome, not an error.

        >>> done = reproduce("galvan/figure-3.1", folder="runs/figure")
        >>> done.cells["radius 0.8", "first / last"].measured_text()
    """
    found = load(recipe) if isinstance(recipe, str) else recipe
    where = Path("runs") / found.document / found.name / scale if folder is None else Path(folder)
    plans = plan(found, scale, where, seeds=seeds, seed=seed, rows=rows, task=task, data=data, device=device)
    check_plan(plans)
    began = time.monotonic()
    outcomes = run_all(plans, progress, announce, limit)
    cells = gather(found, outcomes)
    pairs = judge_all(found, cells, scale)
    done = Reproduction(found, scale, where, outcomes, cells, pairs, time.monotonic() - began)
    done.left = len(plans.attempts) - len(outcomes)
    if not outcomes:
        return done
    from .page import write_page
    from .record import write_record

    done.record = write_record(done)
    done.page = write_page(done)
    return done


def check_plan(plans: Plan) -> None:
    """A ValueError for a slip in any row, before the first one has cost an hour; missing data is no slip."""
    seen: set[str] = set()
    for job in plans.jobs():
        # Seeds and rates of a row differ in nothing that could be a slip of its own.
        settings = {k: v for k, v in job.config["training"].items() if k not in ("seed", "lr")}
        key = repr((job.config["task"], job.config["system"], settings))
        if key in seen:
            continue
        seen.add(key)
        task = make_task(job)
        if missing(task):
            continue
        config = counted(job.config, task)
        Settings.from_dict(config["training"]).for_task(task)
        build(task, config["system"], job.seed)


def run_all(plans: Plan, progress: bool, announce: Callable[[str], None], limit: float | None = None) -> list[Outcome]:
    """The attempt that counts for every row and seed, with a word on how far it is before each run.

    After `limit` seconds nothing is trained any more, and only the rows and seeds that have ended are there.
    """
    recipe, total = plans.recipe, len(plans.attempts)
    guesses = [sum(cost.seconds(job, recipe) for job in group) for group in plans.attempts]
    began, outcomes = time.monotonic(), {}
    with suppress(TimeUp), time_limit(limit):
        together(plans, progress, announce)
        for index, group in enumerate(plans.attempts):
            check_stop()
            spent, done = time.monotonic() - began, sum(guesses[:index])
            left = f", about {cost.rough(spent / done * sum(guesses[index:]))} left" if done and spent > 1 else ""

            def say(job: Job, at: str = f"{index + 1} of {total}", left: str = left) -> None:
                announce(f"{at}: {job.title}{left}")

            outcomes[index] = settle(recipe, group, progress, say)
    # Where the time was too short: a population ends all of its runs at once, before the first of them is settled.
    for index, group in enumerate(plans.attempts):
        if index not in outcomes and settled(recipe, group):
            outcomes[index] = settle(recipe, group, progress, lambda _: None)
    return [outcomes[index] for index in sorted(outcomes)]


def judge_all(recipe: Recipe, cells: dict[tuple[str, str], Cell], scale: str) -> list[Pair]:
    """Fill in all verdicts, and what became of the document's ordering."""
    pairs = verdict.order(recipe, cells, scale)
    told = verdict.by_row(pairs)
    for cell in cells.values():
        verdict.judge(cell, scale, told if cell.column is recipe.columns[0] else {})
    return pairs


def gather(recipe: Recipe, outcomes: Sequence[Outcome]) -> dict[tuple[str, str], Cell]:
    """All cells, with the values of every seed."""
    cells: dict[tuple[str, str], Cell] = {}
    for outcome in outcomes:
        for column in recipe.columns:
            cell = cells.setdefault((outcome.job.row.label, column.name), Cell(outcome.job.row, column))
            value = outcome.values.get(column.measure)
            if isinstance(value, str):
                cell.values.append(value)
            elif value is not None and not math.isnan(value):
                cell.values.append(value * column.factor)
            else:
                cell.gaps.append(_why(outcome, column.measure))
    return cells


def _why(outcome: Outcome, measure: str) -> str:
    return outcome.gap or verdict.missing(measure, outcome.evidence is not None and outcome.evidence.diverged)
