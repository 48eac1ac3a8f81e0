"""How an update is made: by a gradient, by a mixture of its shares in time, or with curvature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from evenflow import penalties
from evenflow.lab.tasks import Batch, Task

from . import evaluation
from .curvature_method import CurvatureMethod
from .gradient_method import GradientMethod
from .method import FULL, Method
from .optimizers import OPTIMIZERS, make_optimizer
from .simplex_method import SimplexMethod

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .settings import Settings


def make_method(fabric: Fabric, module: nn.Module, model: nn.Module, task: Task, settings: Settings) -> Method:
    """The method that the settings name."""
    if settings.optimizer == "temporal-simplex":
        return SimplexMethod(model, task, settings, fabric)
    if settings.optimizer == "hessian-free":
        return CurvatureMethod(model, task, settings)
    return GradientMethod(fabric, module, model, task, settings)


def rehearse(model: nn.Module, task: Task, batch: Batch, settings: Settings) -> None:
    """A ValueError if the method will not do for this model; the model stays as it is."""
    name = settings.optimizer
    if name in OPTIMIZERS:
        make_optimizer(model, settings)
    else:
        if task.carries:
            raise ValueError(f"optimizer {name} starts every batch anew, and task {task.name} reads on")
        if settings.precision not in FULL:
            raise ValueError(f"optimizer {name} needs precision 32-true or 64-true, got {settings.precision}")
    with torch.random.fork_rng([batch.inputs.device] if batch.inputs.is_cuda else []):
        if settings.penalty is not None:
            with penalties.make(settings.penalty).watch(model) as extra:
                extra(task.loss(evaluation.answer(model, batch)[0], batch.targets))
        elif name == "hessian-free":
            CurvatureMethod(model, task, settings).rehearse(batch)
        elif name == "temporal-simplex":
            SimplexMethod(model, task, settings).direct(batch)
            model.zero_grad()
