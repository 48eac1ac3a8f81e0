"""Update methods besides the usual one: a mixture of the gradient's shares in time, curvature, and line search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from evenflow.lab.tasks import Batch, Task
from evenflow.models.sequence_model import SequenceModel
from evenflow.optim import HessianFree, LineSearchDescent, TemporalSimplex, divide

from . import evaluation
from .captured_update import CapturedUpdate
from .given_parts import GivenParts
from .method import GradientMethod, Method, UpdateResult, of_its_dtype, optional
from .optimizers import gradient_norm
from .seeds import derive
from .settings import LINE_SEARCH

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .settings import Settings


class SimplexMethod(Method):
    """A step along a random mixture of the gradient's shares in time; see `optim.TemporalSimplex`."""

    def __init__(self, model: nn.Module, task: Task, settings: Settings, fabric: Fabric | None = None) -> None:
        self.model, self.task, self.settings, self.fabric = model, task, settings, fabric
        self._simplex = TemporalSimplex(
            cast(SequenceModel, model), settings.lr, psi=settings.psi, seed=derive(settings.seed, "simplex")
        )
        self.optimizer, self._padded = self._simplex, evaluation.runs_padded(model)
        self._captured = CapturedUpdate(self._work, model)

    def backward(self, batch: Batch, weights: Tensor | None = None) -> Tensor:
        """Write the direction to the parameters' ``grad`` and return the loss; with weights batches run padded."""
        with self._simplex.listen():
            outputs, _ = evaluation.answer(self.model, batch, padded=weights is not None)
            loss = self.task.loss(outputs, batch.targets)
        self._simplex.backward(loss, weights)
        return loss.detach()

    def update(self, batch: Batch, state: Any, lr_factor: float | None) -> UpdateResult:
        self.set_lr(lr_factor)
        batch = of_its_dtype(self.model, batch)
        group = self.optimizer.param_groups[0]
        updates, lengths = group["updates"], () if batch.lengths is None else batch.lengths
        if self.captures(batch):
            weights = self._simplex.weights(len(batch.inputs)).to(batch.inputs.device)
            result = self._captured((type(batch),), batch.inputs, batch.targets, lengths, weights)
        else:
            result = self._work((type(batch),), batch.inputs, batch.targets, lengths, None)
        group["updates"] = updates + 1  # a captured step counts at its capture and not at a replay
        return result

    def _work(
        self, kind: tuple[type[Batch]], inputs: Tensor, targets: Tensor, lengths: Any, weights: Tensor | None
    ) -> UpdateResult:
        loss = self.backward(kind[0](inputs, targets, optional(lengths)), weights)
        # The direction has the norm of the gradient.
        norm = gradient_norm(p for group in self.optimizer.param_groups for p in group["params"])
        self.optimizer.step()
        self.optimizer.zero_grad()
        return UpdateResult(loss, norm)


class CurvatureMethod(Method):
    """A step of `optim.HessianFree`, its curvature measured on the first sequences of the batch."""

    def __init__(self, model: nn.Module, task: Task, settings: Settings) -> None:
        self._sequences, self._structural = settings.curvature_size, settings.structural
        self._newton = HessianFree(
            model,
            task.loss,
            damping=settings.damping,
            structural=settings.structural,
            # Padded, because packing and unpacking take several times as long as a fused product.
            answer=lambda model, batch: evaluation.answer(model, cast(Batch, batch), padded=True)[0],
            padded=evaluation.runs_padded(model),
        )
        self.optimizer, self._last = self._newton, task.readout == "last"

    def update(self, batch: Batch, state: Any, lr_factor: float | None) -> UpdateResult:
        batch = self._cut(of_its_dtype(self._newton.model, batch))
        progress = self._newton.step(batch, self._cut(self._first(batch)))
        device = batch.inputs.device
        return UpdateResult(torch.tensor(progress.before, device=device), torch.tensor(progress.norm, device=device))

    def check(self, batch: Batch) -> None:
        """Raise a ValueError if the model has no states for structural damping."""
        if self._structural:
            self._newton.curvature(self._cut(batch))

    def _cut(self, batch: Batch) -> Batch:
        """The batch up to the end of its longest sequence; beyond it states could grow without any effect."""
        if batch.lengths is None:
            return batch
        steps = int(batch.lengths.max())
        return Batch(batch.inputs[:steps], batch.targets if self._last else batch.targets[:steps], batch.lengths)

    def _first(self, batch: Batch) -> Batch:
        n = self._sequences
        lengths = None if batch.lengths is None else batch.lengths[:n]
        return Batch(batch.inputs[:, :n], batch.targets[:n] if self._last else batch.targets[:, :n], lengths)


class LineSearchMethod(Method):
    """A step of `optim.LineSearchDescent`, whose trials see the same batch and the same dropout."""

    fabric: Fabric

    def __init__(self, fabric: Fabric, module: nn.Module, model: nn.Module, task: Task, settings: Settings) -> None:
        self.fabric, self.module, self.model, self.task, self.settings = fabric, module, model, task, settings
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._search = LineSearchDescent(self._trained, settings.lr)
        self.optimizer = self._search

    @staticmethod
    def check(model: nn.Module, settings: Settings) -> None:
        """Raise a ValueError for parameters that must move along geodesics."""
        if divide(model, settings.lr)[1]:
            raise ValueError("optimizer line-search needs a model without orthonormal bases, got a factorized map")

    def update(self, batch: Batch, state: Any, lr_factor: float | None) -> UpdateResult:
        noise, final = torch.get_rng_state(), [state]
        device = batch.inputs.device
        cuda_noise = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

        def loss() -> Tensor:
            torch.set_rng_state(noise)
            if cuda_noise is not None:
                torch.cuda.set_rng_state(cuda_noise, device)
            outputs, final[0] = evaluation.answer(self.module, batch, state, False)
            return self.task.loss(outputs, batch.targets)

        def measured() -> float:
            """The loss, averaged over the processes, so that all of them take the same step."""
            value = loss()
            return float(cast(Tensor, self.fabric.all_reduce(value, reduce_op="mean")))

        self.optimizer.zero_grad()
        before = loss()
        self.fabric.backward(before)
        norm = gradient_norm(self._trained)
        self._search.step(measured)
        self.optimizer.zero_grad()
        return UpdateResult(before.detach(), norm, final[0])


def make_method(
    fabric: Fabric, module: nn.Module, model: nn.Module, task: Task, settings: Settings, given: GivenParts
) -> Method:
    """The method that the settings name."""
    if settings.optimizer == "temporal-simplex":
        return SimplexMethod(model, task, settings, fabric)
    if settings.optimizer == "hessian-free":
        return CurvatureMethod(model, task, settings)
    if settings.optimizer == LINE_SEARCH:
        return LineSearchMethod(fabric, module, model, task, settings)
    return GradientMethod(fabric, module, model, task, settings, given)
