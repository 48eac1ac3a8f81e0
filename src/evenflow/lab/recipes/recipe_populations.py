"""Trains runs of a recipe that have the same shape side by side, as one population."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch

from evenflow import penalties
from evenflow.lab.launches import Launch, LaunchPlace
from evenflow.lab.training import OPTIMIZERS, build
from evenflow.lab.training.config import DROPS
from evenflow.lab.training.matrix_clipping import MAPPED
from evenflow.lab.training.run_folder import CONFIG
from evenflow.lab.training.train_population import SHARED, train_population
from evenflow.models.population import Population
from evenflow.models.sequence_model import SequenceModel
from evenflow.systems import NETWORKS

from . import cost, provenance
from .attempts import ends_search, has_ended, missing_data
from .configs import RecipeJob, RecipePlan, epochs_to_updates, updates_of
from .measures import needs_training
from .run_data import RunData

MOST_NUMBERS = 1.6e10  # that the states of one population may take: 64 GB; on a GPU with less memory it is halved
STATES = 6  # tensors of the size of the states that an update keeps, roughly
# Options of a system that draw masks, which a population on a GPU draws otherwise.
NOISE = ("dropout", "recurrent_dropout", "zoneout", "weight_dropout", *DROPS)
NAMED = 3  # rows that an announcement names


def population_launches(plan: RecipePlan, place: LaunchPlace) -> list[Launch]:
    """The launches of the runs that can train side by side, if the place has GPUs; the others are trained after them.

    Rows, seeds and learning rates whose models have the same shape form one population. All learning rates of a search
    run, although the first that converges is the one that counts: in a population they cost little more than
    one. Runs with state penalties, dropout or methods other than gradient descent are left out, and so are recipes
    that measure time.
    """
    launches = []
    for jobs in populations(plan, place):
        folders = tuple(job.folder for job in jobs)
        updates = sum(updates_of(job) for job in jobs)
        launches.append(Launch(functools.partial(_train, jobs), folders, _title(jobs), updates))
    return launches


def populations(plan: RecipePlan, place: LaunchPlace) -> list[list[RecipeJob]]:
    """The runs that have not ended, in as few populations of at least two as their shapes and the memory allow."""
    kinds: dict[str, list[RecipeJob]] = {}
    shapes: dict[str, str] = {}
    for job in _pending(plan, place):
        name = repr(job.config["task"])
        if name not in shapes:
            shapes[name] = _shape(job)
        if shapes[name]:
            shared = [job.config["training"].get(setting) for setting in SHARED]
            kinds.setdefault(repr((shapes[name], shared)), []).append(job)
    parts: list[list[RecipeJob]] = []
    for jobs in kinds.values():
        for alike in _by_model(jobs):
            count = math.ceil(len(alike) * _numbers(alike[0]) / MOST_NUMBERS)
            size = math.ceil(len(alike) / count)
            parts += [alike[at : at + size] for at in range(0, len(alike), size)]
    return [jobs for jobs in parts if len(jobs) > 1]


def _pending(plan: RecipePlan, place: LaunchPlace) -> list[RecipeJob]:
    """Runs still to be trained that give the same results in a population as alone."""
    recipe = plan.recipe
    if not needs_training(recipe) or any(column.measure == "seconds_per_1000" for column in recipe.columns):
        return []
    jobs = []
    for group in plan.attempts:
        for job in group:
            if not has_ended(job):
                device = str(job.config["training"].get("device", "auto"))
                jobs += [job] if place.populations(device) and _is_plain(job) else []
            elif ends_search(recipe, RunData(job, job.make_task(), job.folder)):
                break
    return jobs


def _is_plain(job: RecipeJob) -> bool:
    system, training = job.config["system"], job.config["training"]
    penalty = training.get("penalty")
    plain = training.get("optimizer", "adam") in OPTIMIZERS and not (penalty and penalties.make(penalty).reads_states)
    plain = plain and training.get("clip_scope") != MAPPED
    return plain and system["name"] not in NETWORKS and not any(system.get(key) for key in NOISE)


def _shape(job: RecipeJob) -> str:
    """What the tasks of one population have in common; empty if the task's data is missing."""
    task = job.make_task()
    if missing_data(task):
        return ""
    batch = task.batch(1, torch.Generator().manual_seed(0))
    ragged = batch.lengths is not None
    # Sequences that are not ragged must have the same length; ragged ones should, or the short ones wait.
    steps = cost.time_steps(job.config["task"]) if ragged else len(batch.inputs)
    epoch = task.epoch_steps(int(job.config["training"].get("batch_size", 50)))
    sizes = (task.vocabulary, task.input_size, task.output_size, task.readout, task.carries)
    return repr((steps, ragged, sizes, epoch))


def _by_model(jobs: Sequence[RecipeJob]) -> list[list[RecipeJob]]:
    """The runs grouped by models that can be stacked."""
    task = jobs[0].make_task()  # the tasks of all jobs have the same sizes
    kinds: list[tuple[SequenceModel, list[RecipeJob]]] = []
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


def _numbers(job: RecipeJob) -> float:
    """How many numbers an update of a run keeps, roughly."""
    task, system, training = (job.config[name] for name in ("task", "system", "training"))
    width = cost.GATES.get(str(system["name"]), 1) * int(system["hidden_size"]) * int(system.get("num_layers", 1))
    outputs = cost.TREEBANK_TYPES if task["name"] == "ptb-words" else 0
    return float(cost.time_steps(task) * int(training.get("batch_size", 50)) * (STATES * width + 3 * outputs))


def _train(planned: Sequence[RecipeJob], folders: Sequence[Path], progress: bool) -> None:
    """Train a population; runs to resume form one of their own. A population that does not fit is halved."""
    jobs = [dataclasses.replace(job, folder=folder) for job, folder in zip(planned, folders, strict=True)]
    begun = [(job.folder / CONFIG).is_file() for job in jobs]
    for resume in (True, False):
        ready = [job for job, has_begun in zip(jobs, begun, strict=True) if has_begun is resume]
        if len(ready) < 2:
            continue
        configs = [epochs_to_updates(job.config, job.make_task()) for job in ready]
        provenance.write(ready)
        try:
            train_population(configs, [job.folder for job in ready], resume=resume, progress=progress)
            continue
        except ValueError:
            continue  # a model that cannot be stacked: trained alone, each run reports its own error
        except torch.OutOfMemoryError:
            pass  # the memory is free only after the error is gone
        torch.cuda.empty_cache()
        half = math.ceil(len(ready) / 2)
        for part in (ready[:half], ready[half:]):
            _train(part, [job.folder for job in part], progress)


def _title(jobs: Sequence[RecipeJob]) -> str:
    labels = list(dict.fromkeys(job.row.label for job in jobs))
    more = f" and {len(labels) - NAMED} rows more" if len(labels) > NAMED else ""
    return f"{len(jobs)} runs side by side: {'; '.join(labels[:NAMED])}{more}"
