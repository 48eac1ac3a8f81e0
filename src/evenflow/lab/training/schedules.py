"""How the learning rate changes over a run: schedules by name, and schedulers of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from evenflow.optim import LineSearchDescent
from evenflow.runtime.import_path import imported

from .given_parts import OWN, GivenParts

if TYPE_CHECKING:
    from .settings import Settings

# Of the cycle, as in torch's OneCycleLR: the factors at its start and its end, and the share in which it rises.
CYCLE_START, CYCLE_END, CYCLE_RISE = 1 / 25, 1 / 25e4, 0.3
IMPROVEMENT = 1e-4  # relative; a smaller one counts as none, as in torch's ReduceLROnPlateau


def one_cycle(step: int, steps: int, rise: float) -> float:
    """Smith and Topin 2018: up to the learning rate in `rise` updates, then down to almost zero, along cosines."""
    top, last = rise - 1, steps - 1
    if step <= top:
        return _cosine(CYCLE_START, 1.0, step / top if top > 0 else 1.0)
    return _cosine(1.0, CYCLE_END, min(1.0, (step - top) / (last - top)))


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


# The factor on the learning rate at update `step` (from 0) of `steps`, with the settings decay and decay_every.
SCHEDULES: dict[str, Callable[[int, int, float, int], float]] = {
    "constant": lambda step, steps, decay, every: 1.0,
    "linear": lambda step, steps, decay, every: max(0.0, 1.0 - step / steps),
    "cosine": lambda step, steps, decay, every: _cosine(1.0, 0.0, min(1.0, step / steps)),
    "exponential": lambda step, steps, decay, every: float(decay ** (step / every)),
    "step": lambda step, steps, decay, every: float(decay ** (step // every)),
    "one-cycle": lambda step, steps, decay, every: one_cycle(step, steps, CYCLE_RISE * steps),
    "plateau": lambda step, steps, decay, every: 1.0,  # what validations add is in `RunSchedule`
}
OF_LENGTH = ("linear", "cosine", "one-cycle")  # schedules that depend on the number of updates
DECAYING = ("exponential", "step", "plateau")  # schedules with a decay


def lr_factor(schedule: str, step: int, steps: int, decay: float = 0.5, every: int = 1000, warmup: int = 0) -> float:
    """The factor on the learning rate at update `step` (from 0) of `steps`.

    In the first `warmup` updates the learning rate rises in a straight line, and then the schedule begins. A cycle
    rises by itself, and `warmup` is how long.

    >>> [lr_factor("linear", step, 4) for step in range(5)]
    [1.0, 0.75, 0.5, 0.25, 0.0]
    >>> [lr_factor("linear", step, 6, warmup=2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if schedule == "one-cycle":
        return one_cycle(step, steps, warmup or CYCLE_RISE * steps)
    if step < warmup:
        return (step + 1) / warmup
    return SCHEDULES[schedule](step - warmup, steps - warmup, decay, every)


class RunSchedule:
    """The learning rate of a run: a named schedule, which gives a factor, or a scheduler of torch on the optimiser.

    Attributes:
        scheduler: of torch; None for a named schedule.
    """

    def __init__(self, settings: Settings, own: GivenParts, optimizer: torch.optim.Optimizer) -> None:
        self._settings, self._optimizer = settings, optimizer
        self._factor, self._best, self._stale = 1.0, math.inf, 0
        self.scheduler = make_scheduler(settings, own, optimizer) if OWN in settings.schedule else None

    def factor(self, step: int) -> float | None:
        """The factor on every learning rate at the update after `step` updates; None where a scheduler sets them."""
        s = self._settings
        if self.scheduler is not None:
            return None
        return self._factor * lr_factor(s.schedule, step, s.steps, s.decay, s.decay_every, s.warmup)

    def lr(self, step: int) -> float:
        """The learning rate at that update; asked before it."""
        factor = self.factor(step)
        if isinstance(self._optimizer, LineSearchDescent):
            factor = None  # it holds the one of its next trial
        return float(self._optimizer.param_groups[0]["lr"]) if factor is None else self._settings.lr * factor

    def after_update(self) -> None:
        """Let a scheduler of torch take its step, unless it follows the validations."""
        if self.scheduler is not None and not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()

    def after_validation(self, loss: float) -> None:
        """Multiply by decay after `decay_patience` validations without a lower loss, or tell torch's scheduler."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)
        if self._settings.schedule != "plateau":
            return
        if loss < self._best - IMPROVEMENT * abs(self._best) or math.isinf(self._best):
            self._best, self._stale = loss, 0
        else:
            self._stale += 1
        if self._stale >= self._settings.decay_patience:
            self._factor, self._stale = self._factor * self._settings.decay, 0

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold."""
        if self.scheduler is not None:
            state = self.scheduler.state_dict()
            return {"scheduler": {name: value for name, value in state.items() if not callable(value)}}
        if self._settings.schedule != "plateau":
            return {}
        return {"factor": self._factor, "best": self._best, "stale": self._stale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a checkpoint."""
        if self.scheduler is not None and "scheduler" in state:
            self.scheduler.load_state_dict(state["scheduler"])
        if "factor" in state:
            self._factor, self._best, self._stale = state["factor"], state["best"], state["stale"]


def make_scheduler(settings: Settings, own: GivenParts, optimizer: torch.optim.Optimizer) -> LRScheduler:
    """The scheduler of torch that the caller gave, or that the settings name, on this optimiser."""
    given = imported("schedule", settings.schedule) if own.schedule is None else own.schedule
    scheduler = given
    if not isinstance(given, LRScheduler):
        try:
            scheduler = given(optimizer)
        except TypeError as error:
            raise ValueError(
                f"schedule must make a scheduler of an optimizer alone, as `lambda optimizer: StepLR(optimizer, 100)`, "
                f"got {settings.schedule}: {error}"
            ) from error
    if not isinstance(scheduler, LRScheduler):
        raise ValueError(f"schedule must make a scheduler of torch, got a {type(scheduler).__name__}")
    if scheduler.optimizer is not optimizer:
        raise ValueError("schedule must be a scheduler of the optimizer that is given with it, got that of another")
    return scheduler
