"""An update with curvature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from evenflow.lab.tasks import Batch, Task
from evenflow.optim import HessianFree

from . import evaluation
from .method import Method, Outcome, of_its_dtype

if TYPE_CHECKING:
    from .settings import Settings


class CurvatureMethod(Method):
    """A step of `optim.HessianFree`, its products taken on the first few sequences of the batch."""

    def __init__(self, model: nn.Module, task: Task, settings: Settings) -> None:
        self._sequences, self._structural = settings.curvature_size, settings.structural
        self._newton = HessianFree(
            model,
            task.loss,
            damping=settings.damping,
            structural=settings.structural,
            # Padded: to pack and to unpack takes several times as long as a fused product.
            answer=lambda model, batch: evaluation.answer(model, cast(Batch, batch), padded=True)[0],
            padded=evaluation.runs_padded(model),
        )
        self.optimizer, self._last = self._newton, task.readout == "last"

    def update(self, batch: Batch, state: Any, share: float) -> Outcome:
        batch = self._cut(of_its_dtype(self._newton.model, batch))
        progress = self._newton.step(batch, self._cut(self._first(batch)))
        device = batch.inputs.device
        return Outcome(torch.tensor(progress.before, device=device), torch.tensor(progress.norm, device=device))

    def rehearse(self, batch: Batch) -> None:
        """A ValueError if there is nothing for structural damping to damp."""
        if self._structural:
            self._newton.curvature(self._cut(batch))

    def _cut(self, batch: Batch) -> Batch:
        """The batch up to the end of its longest sequence: beyond it states could grow for nothing."""
        if batch.lengths is None:
            return batch
        steps = int(batch.lengths.max())
        return Batch(batch.inputs[:steps], batch.targets if self._last else batch.targets[:steps], batch.lengths)

    def _first(self, batch: Batch) -> Batch:
        n = self._sequences
        lengths = None if batch.lengths is None else batch.lengths[:n]
        return Batch(batch.inputs[:, :n], batch.targets[:n] if self._last else batch.targets[:, :n], lengths)
