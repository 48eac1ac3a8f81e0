"""Parts of a run that a caller of `fit` makes, and that a config can only name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from evenflow.runtime.import_path import COLON, import_path

from .loggers import PLUS

OWN = COLON  # in the name of an optimiser or a schedule of the user's own, as in "my_package.optim:Lion"
# Settings that an optimiser which is made already has decided.
DECIDED = ("lr", "weight_decay", "momentum", "nesterov", "alpha", "eps", "map_lr", "bases", "bases_lr")


@dataclass(frozen=True)
class GivenParts:
    """What a caller of `fit` has made.

    Args:
        optimizer: a class of optimisers, or an optimiser.
        schedule: a scheduler of torch, or a function that makes one of an optimiser.
        callbacks: called as the run goes on; see `Callback`.
        loggers: of Lightning Fabric.
    """

    optimizer: type[Optimizer] | Optimizer | None = None
    schedule: LRScheduler | Callable[[Optimizer], Any] | None = None
    callbacks: tuple[Any, ...] = ()
    loggers: tuple[Any, ...] = ()


NOTHING_GIVEN = GivenParts()


def given_parts(settings: dict[str, Any], callbacks: tuple[Any, ...]) -> tuple[dict[str, Any], GivenParts]:
    """Divide what a caller gave into settings, which name everything, and the parts themselves."""
    named, own = dict(settings), {}
    named["logger"], loggers = _given_loggers(settings.get("logger"))
    for name in ("optimizer", "schedule"):
        value = settings.get(name)
        if value is not None and not isinstance(value, str):
            own[name], named[name] = value, import_path(value)
    optimizer, schedule = own.get("optimizer"), own.get("schedule")
    if isinstance(optimizer, Optimizer):
        for name in DECIDED:
            if name in settings:
                raise ValueError(f"{name} is that of the optimizer, which is made already, got {settings[name]!r}")
        group = optimizer.param_groups[0]
        named["lr"] = float(group.get("initial_lr", group["lr"]))  # the first is there after a schedule
    elif optimizer is not None and not (isinstance(optimizer, type) and issubclass(optimizer, Optimizer)):
        raise ValueError(f"optimizer must be a name, a class of torch optimizers or an optimizer, got {optimizer!r}")
    if schedule is not None and not callable(schedule) and not isinstance(schedule, LRScheduler):
        raise ValueError(f"schedule must be a name, a scheduler of torch or a function, got {schedule!r}")
    if isinstance(schedule, LRScheduler) and schedule.optimizer is not optimizer:
        raise ValueError("schedule must be a scheduler of the optimizer that is given with it, got that of another")
    return named, GivenParts(**own, callbacks=callbacks, loggers=loggers)


def _given_loggers(logger: Any) -> tuple[str | None, tuple[Any, ...]]:
    """The setting that names all loggers of the user's, and those of them that are objects."""
    if logger is None or isinstance(logger, str):
        return logger, ()
    from lightning_fabric.loggers import Logger

    each = list(logger) if isinstance(logger, list | tuple) else [logger]
    for one in each:
        if not isinstance(one, str | Logger):
            raise ValueError(f"logger must be a name, a logger of Lightning Fabric or a list of these, got {one!r}")
    named = [one if isinstance(one, str) else import_path(one) for one in each]
    if len(set(named)) < len(named):
        raise ValueError(f"logger must hold one logger of a class, got {', '.join(named)}")
    return PLUS.join(named) or None, tuple(one for one in each if not isinstance(one, str))


def check_own_optimizer(optimizer: Optimizer, model: torch.nn.Module, bases: list[dict[str, Any]]) -> None:
    """Raise a ValueError unless an optimiser that is made already can train this model."""
    names = {id(p) for p in model.parameters()}
    for group in optimizer.param_groups:
        if any(id(p) not in names for p in group["params"]):
            raise ValueError("optimizer must hold parameters of the model, got one that is not the model's")
    if bases:
        raise ValueError(
            "optimizer must be a name or a class for a model with a factorized map, whose orthonormal bases need "
            "an optimizer of their own, got an optimizer that is made already"
        )
