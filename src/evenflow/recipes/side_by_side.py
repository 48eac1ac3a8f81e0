"""The seeds of a row as one population."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from evenflow.systems import NETWORKS
from evenflow.training import OPTIMIZERS, Run
from evenflow.training.population import train_population

from .attempts import attempt, make_task, missing, solves
from .configs import Job, counted
from .measures import MEASURES
from .schema import Recipe


def together(recipe: Recipe, seeds: Sequence[Sequence[Job]], progress: bool, announce: Callable[[str], None]) -> None:
    """Train the seeds of a row side by side, as far as that is possible; `settle` then reads back what is there.

    Whatever a population cannot do (penalties, other methods, dropout) is left to be done one by one.
    """
    waiting = list(seeds)
    for number in range(len(seeds[0])):
        jobs = [group[number] for group in waiting]
        task = make_task(jobs[0])
        if len(jobs) < 2 or not pays(jobs[0]) or missing(task) or not _alike(recipe, jobs[0]):
            return
        for resume in (False, True):
            states = ("running", "interrupted") if resume else ("new",)
            ready = [job for job in jobs if _state(job) in states]
            if len(ready) > 1:
                rate = "" if jobs[0].rate is None else f", rate {jobs[0].rate:g}"
                announce(f"{jobs[0].row.label}{rate}: {len(ready)} seeds side by side")
                configs = [counted(job.config, task) for job in ready]
                try:
                    train_population(configs, [job.folder for job in ready], resume=resume, progress=progress)
                except ValueError:
                    return  # a model that cannot be stacked, or another data folder: one by one says which
        done = [attempt(recipe, job, progress) for job in jobs]
        waiting = [g for g, o in zip(waiting, done, strict=True) if o.evidence is None or not solves(o.evidence)]
        if recipe.search == "best":
            waiting = list(seeds)


def pays(job: Job) -> bool:
    """Whether a population is faster: on a GPU, where small models wait for launches; a CPU takes them one by one."""
    wanted = str(job.config["training"].get("device", "auto"))
    return torch.cuda.is_available() and wanted.startswith(("auto", "cuda"))


def _alike(recipe: Recipe, job: Job) -> bool:
    """Whether seeds of this job may train as a population and end as they would alone."""
    system, training = job.config["system"], job.config["training"]
    plain = training.get("optimizer", "adam") in OPTIMIZERS and "penalty" not in training
    recurrent = system["name"] not in NETWORKS and not system.get("dropout")
    return plain and recurrent and any(MEASURES[column.measure].trains for column in recipe.columns)


def _state(job: Job) -> str:
    return str(Run(job.folder).status["state"]) if (job.folder / "config.toml").is_file() else "new"
