"""An update by a gradient."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from evenflow import penalties
from evenflow.lab.tasks import Batch, Task
from evenflow.maps import Map
from evenflow.optim import GeodesicSGD

from . import evaluation
from .captured import Captured
from .clipping import clip, gradient_norm, in_scope
from .method import Method, Outcome, given
from .optimizers import make_optimizer

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .settings import Settings


class GradientMethod(Method):
    """Backward pass, clipping, and a step of Adam, RMSprop or SGD; orthonormal bases move along geodesics."""

    fabric: Fabric

    def __init__(self, fabric: Fabric, module: nn.Module, model: nn.Module, task: Task, settings: Settings) -> None:
        self.fabric, self.module, self.model, self.task, self.settings = fabric, module, model, task, settings
        self.optimizer = make_optimizer(model, settings)
        self._apply: Any = fabric.setup_optimizers(self.optimizer)
        self._trained = in_scope(model, "all")[0]
        self._clipped = in_scope(model, settings.clip_scope)
        self._penalty = None if settings.penalty is None else penalties.make(settings.penalty)
        self._captured = Captured(self._work, [part for part in model.modules() if isinstance(part, Map)])
        # Where updates are recorded rounding is taken back between them: in a recording it would be at every update.
        self._bases = [each for each in self._members() if isinstance(each, GeodesicSGD)] if self.capturable else []
        for bases in self._bases:
            bases.polishes = False
        # Penalties on states and gradients must not see padding.
        self._padded = evaluation.runs_padded(model) and not (self._penalty is not None and self._penalty.reads_states)

    def update(self, batch: Batch, state: Any, share: float) -> Outcome:
        self.schedule(share)
        if not self.records(batch):
            return self._update(batch, state)
        start = state if batch.carried and state is not None else ()
        lengths = () if batch.lengths is None else batch.lengths
        return self._captured((type(batch),), batch.inputs, batch.targets, lengths, start)

    def _work(self, kind: tuple[type[Batch]], inputs: Tensor, targets: Tensor, lengths: Any, state: Any) -> Outcome:
        batch = kind[0](inputs, targets, given(lengths))
        found = self._update(batch, given(state))
        return found._replace(state=evaluation.cut(found.state))

    def _update(self, batch: Batch, state: Any) -> Outcome:
        self._apply.zero_grad()  # a recording that broke off may have left some
        with nullcontext() if self._penalty is None else self._penalty.watch(self.model) as extra:
            outputs, state = evaluation.answer(self.module, batch, state, None if self._padded else False)
            loss = self.task.loss(outputs, batch.targets)
            self.fabric.backward(loss if extra is None else loss + extra(loss))
        return self.apply(loss.detach(), state)

    def penalized(self, loss: Tensor) -> Tensor:
        """The loss with the penalty, for one that reads the weights alone."""
        if self._penalty is None:
            return loss
        with self._penalty.watch(self.model) as extra:
            return loss + extra(loss)

    def apply(self, loss: Tensor, state: Any) -> Outcome:
        """Clip the gradients that a backward pass has left, step along them, and clear them."""
        settings = self.settings
        norm = gradient_norm(self._trained)
        if settings.clip_norm is not None or settings.clip_value is not None:
            for part in self._clipped:
                measured = norm if settings.clip_scope == "all" else None
                clip(part, settings.clip_norm, settings.clip_value, measured)
        self._apply.step()
        self._apply.zero_grad()
        return Outcome(loss, norm, state)
