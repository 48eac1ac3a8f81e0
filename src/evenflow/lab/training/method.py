"""What every way to make an update has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from evenflow.lab.tasks import Batch
from evenflow.optim import GeodesicSGD, Joined, TemporalSimplex
from evenflow.optim.geodesic import POLISH_EVERY

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .settings import Settings

FULL = ("32-true", "64-true")  # precisions without autocast that leave products as they are
PLAIN = (*FULL, "tf32")  # all without autocast
# Optimisers that step without looking at a number.
BLIND = (torch.optim.Adam, torch.optim.RMSprop, torch.optim.SGD, GeodesicSGD, TemporalSimplex)
INITIAL = "initial_lr"  # a group's rate before the schedule


class Outcome(NamedTuple):
    """What an update saw: the task's loss, the gradient's norm, and where the sequences ended."""

    loss: Tensor
    norm: Tensor
    state: Any = None


class Method(ABC):
    """One update after the other. What it remembers is its optimiser's state, so that is all there is to save."""

    optimizer: torch.optim.Optimizer
    fabric: Fabric | None = None
    settings: Settings
    _padded = (
        False  # whether ragged batches run padded: packed ones are sorted on the host, which no recording waits for
    )
    _bases: Sequence[GeodesicSGD] = ()  # whose rounding is taken back between updates, not in them
    _share: float | None = None  # of the rates, as they are on the GPU

    @property
    def capturable(self) -> bool:
        """Whether an update runs on one GPU without looking at a number, so that it can be recorded."""
        fabric = self.fabric
        one_gpu = fabric is not None and fabric.device.type == "cuda" and fabric.world_size == 1
        return one_gpu and self.settings.precision in PLAIN and all(isinstance(each, BLIND) for each in self._members())

    def _members(self) -> Sequence[torch.optim.Optimizer]:
        return self.optimizer.optimizers if isinstance(self.optimizer, Joined) else [self.optimizer]

    def records(self, batch: Batch) -> bool:
        """Whether the update on this batch can be recorded."""
        return self.capturable and (batch.lengths is None or self._padded)

    @abstractmethod
    def update(self, batch: Batch, state: Any, share: float) -> Outcome:
        """Change the weights once.

        Args:
            batch, state: what to learn from, and where its sequences begin if they go on from the batch before.
            share: what the schedule leaves of every learning rate.
        """

    def settle(self, step: int) -> None:
        """Called after update `step`, outside of any recording, for what is not due at every update."""
        if step % POLISH_EVERY == 0:
            for bases in self._bases:
                bases.polish()

    def schedule(self, share: float) -> None:
        """Set every learning rate to this share of its own.

        Where updates are recorded the rates stay where they are and change their value, so that a recording sees it.
        """
        for group in self.optimizer.param_groups:
            lr = group.setdefault(INITIAL, group["lr"]) * share
            if not self.capturable:
                group["lr"] = lr
            elif not isinstance(group["lr"], Tensor) or group["lr"].device != self.fabric.device:  # type: ignore[union-attr]
                group["lr"] = torch.tensor(lr, device=self.fabric.device)  # type: ignore[union-attr]
            elif share != self._share:
                group["lr"].fill_(lr)
        self._share = share


def of_its_dtype(model: nn.Module, batch: Batch) -> Batch:
    """The batch in the model's dtype, for a model that Fabric does not call."""
    if not batch.inputs.is_floating_point():
        return batch
    return batch._replace(inputs=batch.inputs.to(next(model.parameters()).dtype))


def given(part: Any) -> Any:
    """A part of a recording's arguments, where an empty tuple stands for none."""
    return None if isinstance(part, tuple) and not part else part
