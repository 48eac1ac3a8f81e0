"""How an update is made: by a gradient, by a mixture of its shares in time, or with curvature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from evenflow import penalties
from evenflow.maps import Map
from evenflow.model import SequenceModel
from evenflow.optim import GeodesicSGD, HessianFree, Joined, TemporalSimplex
from evenflow.tasks import Batch, Task

from . import evaluation
from .captured import Captured
from .clipping import clip, gradient_norm, in_scope
from .optimizers import OPTIMIZERS, make_optimizer
from .seeds import derive

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
    _share: float | None = None  # of the rates, as they are on the GPU

    @property
    def capturable(self) -> bool:
        """Whether an update runs on one GPU without looking at a number, so that it can be recorded."""
        fabric, members = (
            self.fabric,
            self.optimizer.optimizers if isinstance(self.optimizer, Joined) else [self.optimizer],
        )
        one_gpu = fabric is not None and fabric.device.type == "cuda" and fabric.world_size == 1
        return one_gpu and self.settings.precision in PLAIN and all(isinstance(member, BLIND) for member in members)

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

    def schedule(self, share: float) -> None:
        """Set every learning rate to this share of its own.

        Where updates are recorded the rates stay where they are and change their value, so that a recording sees it.
        """
        for group in self.optimizer.param_groups:
            rate = group.setdefault(INITIAL, group["lr"]) * share
            if not self.capturable:
                group["lr"] = rate
            elif not isinstance(group["lr"], Tensor) or group["lr"].device != self.fabric.device:  # type: ignore[union-attr]
                group["lr"] = torch.tensor(rate, device=self.fabric.device)  # type: ignore[union-attr]
            elif share != self._share:
                group["lr"].fill_(rate)
        self._share = share


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
        # Who listens wants no padding.
        self._padded = evaluation.runs_padded(model) and not (self._penalty is not None and self._penalty.listens)

    def update(self, batch: Batch, state: Any, share: float) -> Outcome:
        self.schedule(share)
        if not self.records(batch):
            return self._update(batch, state)
        start = state if batch.carried and state is not None else ()
        lengths = () if batch.lengths is None else batch.lengths
        return self._captured((type(batch),), batch.inputs, batch.targets, lengths, start)

    def _work(self, kind: tuple[type[Batch]], inputs: Tensor, targets: Tensor, lengths: Any, state: Any) -> Outcome:
        batch = kind[0](inputs, targets, _given(lengths))
        found = self._update(batch, _given(state))
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


class SimplexMethod(Method):
    """A step along a random mixture of the gradient's shares in time, see `optim.TemporalSimplex`."""

    def __init__(self, model: nn.Module, task: Task, settings: Settings, fabric: Fabric | None = None) -> None:
        self.model, self.task, self.settings, self.fabric = model, task, settings, fabric
        self._simplex = TemporalSimplex(
            cast(SequenceModel, model), settings.rate, psi=settings.psi, seed=derive(settings.seed, "simplex")
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
        batch = _of_its_dtype(self.model, batch)
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
        loss = self.direct(kind[0](inputs, targets, _given(lengths)), weights)
        # The direction has the true gradient's norm.
        norm = gradient_norm(p for group in self.optimizer.param_groups for p in group["params"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Outcome(loss, norm)


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
        batch = self._cut(_of_its_dtype(self._newton.model, batch))
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


def _of_its_dtype(model: nn.Module, batch: Batch) -> Batch:
    """The batch in the model's dtype, for a model that Fabric does not call."""
    if not batch.inputs.is_floating_point():
        return batch
    return batch._replace(inputs=batch.inputs.to(next(model.parameters()).dtype))


def _given(part: Any) -> Any:
    """A part of a recording's arguments, where an empty tuple stands for none."""
    return None if isinstance(part, tuple) and not part else part


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
