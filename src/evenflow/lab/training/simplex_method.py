"""An update along a mixture of the gradient's shares in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from evenflow.lab.tasks import Batch, Task
from evenflow.maps import Map
from evenflow.models.sequence_model import SequenceModel
from evenflow.optim import TemporalSimplex

from . import evaluation
from .captured import Captured
from .clipping import gradient_norm
from .method import Method, Outcome, given, of_its_dtype
from .seeds import derive

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .settings import Settings


class SimplexMethod(Method):
    """A step along a random mixture of the gradient's shares in time, see `optim.TemporalSimplex`."""

    def __init__(self, model: nn.Module, task: Task, settings: Settings, fabric: Fabric | None = None) -> None:
        self.model, self.task, self.settings, self.fabric = model, task, settings, fabric
        self._simplex = TemporalSimplex(
            cast(SequenceModel, model), settings.lr, psi=settings.psi, seed=derive(settings.seed, "simplex")
        )
        self.optimizer, self._padded = self._simplex, evaluation.runs_padded(model)
        self._captured = Captured(self._work, [part for part in model.modules() if isinstance(part, Map)])

    def direct(self, batch: Batch, weights: Tensor | None = None) -> Tensor:
        """Put the direction where the gradient would be; returns the loss. With weights batches run padded."""
        with self._simplex.listen():
            outputs, _ = evaluation.answer(self.model, batch, padded=weights is not None)
            loss = self.task.loss(outputs, batch.targets)
        self._simplex.backward(loss, weights)
        return loss.detach()

    def update(self, batch: Batch, state: Any, share: float) -> Outcome:
        self.schedule(share)
        batch = of_its_dtype(self.model, batch)
        group = self.optimizer.param_groups[0]
        updates, lengths = group["updates"], () if batch.lengths is None else batch.lengths
        if self.records(batch):
            weights = self._simplex.weights(len(batch.inputs)).to(batch.inputs.device)
            found = self._captured((type(batch),), batch.inputs, batch.targets, lengths, weights)
        else:
            found = self._work((type(batch),), batch.inputs, batch.targets, lengths, None)
        group["updates"] = updates + 1  # a recording counts when it is made, and not when it is replayed
        return found

    def _work(
        self, kind: tuple[type[Batch]], inputs: Tensor, targets: Tensor, lengths: Any, weights: Tensor | None
    ) -> Outcome:
        loss = self.direct(kind[0](inputs, targets, given(lengths)), weights)
        # The direction has the true gradient's norm.
        norm = gradient_norm(p for group in self.optimizer.param_groups for p in group["params"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Outcome(loss, norm)
