"""What the map of a recurrent matrix costs: updates with it and without it take turns, and their times are compared."""

from __future__ import annotations

import copy
import statistics
from contextlib import ExitStack
from time import perf_counter

import torch
from torch.nn.utils import parametrize

from evenflow.lab.training import Settings, build
from evenflow.lab.training.config import config_tables
from evenflow.lab.training.launch import launch
from evenflow.lab.training.lifecycle import open_run
from evenflow.lab.training.loop import Loop
from evenflow.maps import detach
from evenflow.models.sequence_model import SequenceModel

from .configs import RecipeJob, epochs_to_updates

WARM_UP, ROUNDS = 10, 30  # updates of each model; on a GPU an update is captured after five


def extra_time(job: RecipeJob) -> float:
    """By how many per cent an update takes longer with the job's maps than with free matrices of the same values.

    After `WARM_UP` updates of each model, the two take turns for `ROUNDS` rounds, so that noise of the machine affects
    both. The result is the median over the rounds.
    """
    task = job.make_task()
    config = epochs_to_updates(job.config, task)
    settings = Settings.from_dict(config["training"])
    mapped = build(task, config["system"], job.seed)
    assert isinstance(mapped, SequenceModel)
    models = (mapped, without_maps(mapped))
    fabric = launch(settings)
    tables = config_tables(task, settings, config["system"])
    with ExitStack() as stack:
        loops = [stack.enter_context(open_run(fabric, model, task, settings, None, tables, False)) for model in models]
        for loop in loops:
            loop.module.train()
            for _ in range(WARM_UP):
                loop.update()
        ratios = []
        for turn in range(ROUNDS):
            # Each model is first in every other round.
            seconds = {id(loop): _seconds(loop) for loop in (loops if turn % 2 else reversed(loops))}
            ratios.append(seconds[id(loops[0])] / seconds[id(loops[1])])
    return 100 * (statistics.median(ratios) - 1)


def without_maps(model: SequenceModel) -> SequenceModel:
    """A copy of the model whose matrices have the same values and no map."""
    copied = copy.deepcopy(model)
    for module in list(copied.modules()):
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                detach(module, name)
    return copied


def _seconds(loop: Loop) -> float:
    """The time of one update."""
    _wait(loop)
    start = perf_counter()
    loop.update()
    _wait(loop)
    return perf_counter() - start


def _wait(loop: Loop) -> None:
    if loop.fabric.device.type == "cuda":
        torch.cuda.synchronize(loop.fabric.device)
