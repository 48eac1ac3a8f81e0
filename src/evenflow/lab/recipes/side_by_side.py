"""Runs of a recipe that share a shape, as one population."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch

from evenflow import penalties
from evenflow.lab.training import OPTIMIZERS, build
from evenflow.lab.training.config import DROPS
from evenflow.lab.training.train_population import SHARED, train_population
from evenflow.models.population import Population
from evenflow.models.sequence_model import SequenceModel
from evenflow.systems import NETWORKS

from . import cost, origin
from .attempts import ended, make_task, missing, solves
from .configs import Job, Plan, counted
from .evidence import Evidence
from .measures import MEASURES
from .schema import Recipe

MOST_NUMBERS = 1.6e10  # that the states of one population may take: 64 GB; where a GPU has less, it is halved
STATES = 6  # tensors as large as the states that an update keeps, roughly
NAMED = 3  # rows that an announcement names


def together(plans: Plan, progress: bool, announce: Callable[[str], None]) -> None:
    """Train side by side what can be; `settle` then reads back what is there and does the rest one by one.

    Rows, seeds and learning rates whose models have the same shape are one population. All rates of a search run,
    although the first that solves the task still is the one that counts: beside each other they cost little more than
    one. Whatever a population cannot do (penalties of states, other methods, dropout) is left, and so are recipes that
    measure time.
    """
    for jobs in populations(plans):
        _train(jobs, progress, announce)


def populations(plans: Plan) -> list[list[Job]]:
    """The runs that have not ended, in as few populations of two and more as their shapes and the memory allow."""
    kinds: dict[str, list[Job]] = {}
    shapes: dict[str, str] = {}
    for job in _waiting(plans):
        name = repr(job.config["task"])
        if name not in shapes:
            shapes[name] = _shape(job)
        if shapes[name]:
            shared = [job.config["training"].get(setting) for setting in SHARED]
            kinds.setdefault(repr((shapes[name], shared)), []).append(job)
    found = []
    for jobs in kinds.values():
        for alike in _alike(jobs):
            parts = math.ceil(len(alike) * _numbers(alike[0]) / MOST_NUMBERS)
            size = math.ceil(len(alike) / parts)
            found += [alike[at : at + size] for at in range(0, len(alike), size)]
    return [jobs for jobs in found if len(jobs) > 1]


def pays(job: Job) -> bool:
    """Whether a population is faster: on a GPU, where small models wait for launches; a CPU takes them one by one."""
    wanted = str(job.config["training"].get("device", "auto"))
    return torch.cuda.is_available() and wanted.startswith(("auto", "cuda"))


def _waiting(plans: Plan) -> list[Job]:
    """Runs still to be made that may train in a population and end as they would alone."""
    recipe, found = plans.recipe, []
    measures = [column.measure for column in recipe.columns]
    if "seconds_per_1000" in measures or not any(MEASURES[name].trains for name in measures):
        return []
    for group in plans.attempts:
        for job in group:
            if not ended(job):
                found += [job] if pays(job) and _plain(job) else []
            elif _solved(recipe, job):
                break
    return found


def _solved(recipe: Recipe, job: Job) -> bool:
    return recipe.search == "until-solved" and solves(Evidence(job, make_task(job), job.folder))


def _plain(job: Job) -> bool:
    system, training = job.config["system"], job.config["training"]
    penalty = training.get("penalty")
    usual = training.get("optimizer", "adam") in OPTIMIZERS and not (penalty and penalties.make(penalty).reads_states)
    return usual and system["name"] not in NETWORKS and not any(system.get(key) for key in ("dropout", *DROPS))


def _shape(job: Job) -> str:
    """What tasks of one population have in common; empty where a task's data is missing."""
    task = make_task(job)
    if missing(task):
        return ""
    batch = task.batch(1, torch.Generator().manual_seed(0))
    ragged = batch.lengths is not None
    # Sequences without an end of their own must be equally long; the others should be, or the short ones wait.
    steps = cost.time_steps(job.config["task"]) if ragged else len(batch.inputs)
    epoch = task.epoch_steps(int(job.config["training"].get("batch_size", 50)))
    sizes = (task.vocabulary, task.input_size, task.output_size, task.readout, task.carries)
    return repr((steps, ragged, sizes, epoch))


def _alike(jobs: Sequence[Job]) -> list[list[Job]]:
    """The runs by the kind of their models."""
    task = make_task(jobs[0])  # one of the same sizes as all the others
    kinds: list[tuple[SequenceModel, list[Job]]] = []
    for job in jobs:
        model = cast(SequenceModel, build(task, job.config["system"], job.seed))
        for first, members in kinds:
            try:
                Population([first, model])
            except ValueError:
                continue
            members.append(job)
            break
        else:
            kinds.append((model, [job]))
    return [members for _, members in kinds]


def _numbers(job: Job) -> float:
    """How many numbers an update of a run keeps, roughly."""
    task, system, training = (job.config[name] for name in ("task", "system", "training"))
    wide = cost.GATES.get(str(system["name"]), 1) * int(system["hidden_size"]) * int(system.get("num_layers", 1))
    outputs = cost.TREEBANK_TYPES if task["name"] == "ptb-words" else 0
    return float(cost.time_steps(task) * int(training.get("batch_size", 50)) * (STATES * wide + 3 * outputs))


def _train(jobs: Sequence[Job], progress: bool, announce: Callable[[str], None]) -> None:
    """Train a population; those that were begun before, apart from the others. Where memory ends, half of it."""
    begun = [(job.folder / "config.toml").is_file() for job in jobs]
    for resume in (True, False):
        ready = [job for job, known in zip(jobs, begun, strict=True) if known is resume]
        if len(ready) < 2:
            continue
        announce(_sentence(ready))
        configs = [counted(job.config, make_task(job)) for job in ready]
        origin.write(ready)
        try:
            train_population(configs, [job.folder for job in ready], resume=resume, progress=progress)
            continue
        except ValueError:
            continue  # a model that cannot be stacked, or another task: one by one says which
        except torch.OutOfMemoryError:
            pass  # what it holds on to is free only once the error is gone
        torch.cuda.empty_cache()
        half = math.ceil(len(ready) / 2)
        for part in (ready[:half], ready[half:]):
            _train(part, progress, announce)


def _sentence(jobs: Sequence[Job]) -> str:
    labels = list(dict.fromkeys(job.row.label for job in jobs))
    more = f" and {len(labels) - NAMED} rows more" if len(labels) > NAMED else ""
    return f"{len(jobs)} runs side by side: {'; '.join(labels[:NAMED])}{more}"
