"""Code of the user's own that `fit` calls as a run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from evenflow.lab.tasks import Task
from evenflow.runtime.import_path import import_path

from .settings import Settings

if TYPE_CHECKING:
    from .loop import Loop
    from .result import Result

PLAIN_TYPES = (type(None), bool, int, float, str, Tensor)


class ActiveRun:
    """The run under way, as a callback sees it.

    Attributes:
        valid_loss, valid_metric: of the last validation in this session; nan before the first.

    >>> class Report(Callback):
    ...     def after_validation(self, run):  # an ActiveRun
    ...         print(run.step, run.lr)
    >>> result = fit(model, task, steps=10, callbacks=[Report()], progress=False)
    10 0.001
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.valid_loss = self.valid_metric = float("nan")

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self._loop.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Its optimiser."""
        return self._loop.optimizer

    @property
    def task(self) -> Task:
        """What it is trained on."""
        return self._loop.task

    @property
    def settings(self) -> Settings:
        """The settings, with `steps` counted also where `epochs` were given."""
        return self._loop.settings

    @property
    def folder(self) -> Path | None:
        """The run folder; None in memory, and in all processes but the first."""
        return None if self._loop.writer is None else self._loop.writer.folder

    @property
    def step(self) -> int:
        """The number of updates so far."""
        return self._loop.step

    @property
    def lr(self) -> float:
        """The learning rate of the last update."""
        return self._loop.last_lr

    @property
    def loss(self) -> Tensor:
        """The loss of the last update, on the device; the next update overwrites it."""
        return self._loop.last_loss

    def stop(self) -> None:
        """End the run after this update, which is validated and saved; asked after a checkpoint, after the next one."""
        self._loop.stopping = True


class Callback:
    """Base of code that `fit` calls. A subclass overrides what it needs; under `torchrun` every process calls it.

    A callback that remembers something returns it from `state_dict`: numbers, text, tensors, and lists and dictionaries
    of them. It is in every checkpoint, and a resumed run gives it back to the callback of the same class.

        >>> class Average(Callback):
        ...     def __init__(self): self.mean = 0.0
        ...     def after_update(self, run): self.mean += 0.01 * (float(run.loss) - self.mean)
        ...     def after_validation(self, run):
        ...         if run.valid_loss < 0.01: run.stop()
        ...     def state_dict(self): return {"mean": self.mean}
        ...     def load_state_dict(self, state): self.mean = state["mean"]
    """

    def after_update(self, run: ActiveRun) -> None:
        """Called after each update, before its validation and its checkpoint."""

    def after_validation(self, run: ActiveRun) -> None:
        """Called after each validation."""

    def after_checkpoint(self, run: ActiveRun) -> None:
        """Called after each checkpoint in a run folder, the first of which is written before the first update."""

    def at_end(self, result: Result) -> None:
        """Called once the run is finished, not if it failed or was interrupted."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to the state of a checkpoint."""


class RunCallbacks:
    """The callbacks of a loop, called in their order."""

    def __init__(self, callbacks: Sequence[Callback], loop: Loop) -> None:
        self._callbacks, self._run = callbacks, ActiveRun(loop)

    def after_update(self) -> None:
        for callback in self._callbacks:
            callback.after_update(self._run)

    def after_validation(self, loss: float, metric: float) -> None:
        self._run.valid_loss, self._run.valid_metric = loss, metric
        for callback in self._callbacks:
            callback.after_validation(self._run)

    def after_checkpoint(self) -> None:
        for callback in self._callbacks:
            callback.after_checkpoint(self._run)

    def at_end(self, result: Result) -> None:
        for callback in self._callbacks:
            callback.at_end(result)

    def state(self) -> list[Any]:
        """The class and the state of every callback that has one."""
        states = [[import_path(callback), dict(callback.state_dict())] for callback in self._callbacks]
        for path, state in states:
            for value in _values(state):
                if not isinstance(value, PLAIN_TYPES):
                    raise ValueError(
                        f"state_dict of {path} must hold numbers, text, tensors, and lists and dictionaries of them, "
                        f"got a {type(value).__name__}"
                    )
        return [[path, state] for path, state in states if state]

    def restore(self, states: Sequence[Any]) -> None:
        """Give the states of a checkpoint to the callbacks of the same classes."""
        left = list(self._callbacks)
        for path, state in states:
            callback = next((each for each in left if import_path(each) == path), None)
            if callback is None:
                raise ValueError(f"callbacks must hold a {path}, whose state is in the checkpoint")
            left.remove(callback)
            callback.load_state_dict(state)


def _values(state: Any) -> Iterator[Any]:
    """All values in nested lists and dictionaries."""
    if isinstance(state, dict):
        state = [*state, *state.values()]
    if isinstance(state, list | tuple):
        for part in state:
            yield from _values(part)
    else:
        yield state
