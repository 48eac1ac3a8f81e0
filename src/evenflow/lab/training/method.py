"""How an update of the weights is made: the interface of all methods, and the usual one by a gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from evenflow import penalties
from evenflow.lab.tasks import Batch, Task
from evenflow.optim import GeodesicSGD, Joined, TemporalSimplex
from evenflow.optim.geodesic import POLISH_EVERY

from . import evaluation
from .captured_update import CapturedUpdate
from .given_parts import NOTHING_GIVEN, OWN, GivenParts
from .matrix_clipping import MAPPED, clipped_matrices
from .optimizers import clip, clip_groups, gradient_norm, make_optimizer

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from .settings import Settings

FULL = ("32-true", "64-true")  # precisions without autocast that leave matrix products as they are
PLAIN = (*FULL, "tf32")  # all without autocast
# Optimisers that step without reading a number from the GPU.
CAPTURABLE = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.SGD,
    GeodesicSGD,
    TemporalSimplex,
)
INITIAL = "initial_lr"  # key of a parameter group: its learning rate before the schedule


class UpdateResult(NamedTuple):
    """The task's loss and the gradient's norm at an update, and the final state of the batch."""

    loss: Tensor
    norm: Tensor
    state: Any = None


class Method(ABC):
    """Makes one update after the other. All that a checkpoint has to hold is its optimiser's state."""

    optimizer: torch.optim.Optimizer
    fabric: Fabric | None = None
    settings: Settings
    _padded = False  # whether ragged batches run padded; packing sorts on the host, which cannot be captured
    _bases: Sequence[GeodesicSGD] = ()  # polished between updates rather than in them
    _lr_factor: float | None = None  # the factor that the learning rates on the GPU hold

    @property
    def capturable(self) -> bool:
        """Whether updates run on one GPU without reading a number from it, so that they can be captured."""
        fabric = self.fabric
        one_gpu = fabric is not None and fabric.device.type == "cuda" and fabric.world_size == 1
        blind = all(isinstance(member, CAPTURABLE) for member in self._members())
        # An optimiser or a scheduler of the user's own may keep numbers on the host.
        named = OWN not in self.settings.optimizer and OWN not in self.settings.schedule
        plain = self.settings.precision in PLAIN and self.settings.accumulate == 1
        return one_gpu and plain and blind and named

    def _members(self) -> Sequence[torch.optim.Optimizer]:
        return self.optimizer.optimizers if isinstance(self.optimizer, Joined) else [self.optimizer]

    def captures(self, batch: Batch) -> bool:
        """Whether the update on this batch can be captured."""
        return self.capturable and (batch.lengths is None or self._padded)

    @abstractmethod
    def update(self, batch: Batch, state: Any, lr_factor: float | None) -> UpdateResult:
        """Change the weights once.

        Args:
            batch: what to learn from.
            state: the final state of the batch before, for batches that continue its sequences.
            lr_factor: the schedule's factor on every learning rate; None leaves them as a scheduler of torch set them.
        """

    def accumulate(self, batches: Iterable[Batch], count: int, lr_factor: float | None) -> UpdateResult:
        """Change the weights once, by the mean gradient of several batches, which are drawn one after the other."""
        raise NotImplementedError(f"{type(self).__name__} takes one batch an update")  # the settings refuse it before

    def after_update(self, step: int) -> None:
        """Do the work that is not due at every update; called after update `step`, outside of any capture."""
        if step % POLISH_EVERY == 0:
            for bases in self._bases:
                bases.polish()

    def set_lr(self, lr_factor: float | None) -> None:
        """Set every learning rate to this multiple of its initial value.

        If updates are captured, the learning rates are tensors whose values change in place, so that a replay uses
        them. None leaves them.
        """
        if lr_factor is None:
            return
        for group in self.optimizer.param_groups:
            lr = group.setdefault(INITIAL, group["lr"]) * lr_factor
            if not self.capturable:
                group["lr"] = lr
            elif not isinstance(group["lr"], Tensor) or group["lr"].device != self.fabric.device:  # type: ignore[union-attr]
                group["lr"] = torch.tensor(lr, device=self.fabric.device)  # type: ignore[union-attr]
            elif lr_factor != self._lr_factor:
                group["lr"].fill_(lr)
        self._lr_factor = lr_factor


class GradientMethod(Method):
    """Backward pass, clipping, and a step of Adam, RMSprop or SGD; orthonormal bases move along geodesics."""

    fabric: Fabric

    def __init__(
        self,
        fabric: Fabric,
        module: nn.Module,
        model: nn.Module,
        task: Task,
        settings: Settings,
        given: GivenParts = NOTHING_GIVEN,
    ) -> None:
        self.fabric, self.module, self.model, self.task, self.settings = fabric, module, model, task, settings
        self.optimizer = make_optimizer(model, settings, given)
        self._apply: Any = fabric.setup_optimizers(self.optimizer)
        self._trained = clip_groups(model, "all")[0]
        self._clipped = clip_groups(model, settings.clip_scope)
        self._penalty = None if settings.penalty is None else penalties.make(settings.penalty)
        # Captured updates leave polishing to `after_update`: in the graph it would run at every update.
        self._bases = [each for each in self._members() if isinstance(each, GeodesicSGD)] if self.capturable else []
        for bases in self._bases:
            bases.polishes = False
        # A penalty that reads the states must not see padding.
        self._padded = evaluation.runs_padded(model) and not (self._penalty is not None and self._penalty.reads_states)
        if self.capturable:
            self._captured = CapturedUpdate(self._work, model)

    def update(self, batch: Batch, state: Any, lr_factor: float | None) -> UpdateResult:
        self.set_lr(lr_factor)
        if not self.captures(batch):
            return self._update([batch], 1, state)
        start = state if batch.carried and state is not None else ()
        lengths = () if batch.lengths is None else batch.lengths
        return self._captured((type(batch),), batch.inputs, batch.targets, lengths, start)

    def _work(
        self, kind: tuple[type[Batch]], inputs: Tensor, targets: Tensor, lengths: Any, state: Any
    ) -> UpdateResult:
        result = self._update([kind[0](inputs, targets, optional(lengths))], 1, optional(state))
        return result._replace(state=evaluation.detach_state(result.state))

    def accumulate(self, batches: Iterable[Batch], count: int, lr_factor: float | None) -> UpdateResult:
        self.set_lr(lr_factor)
        return self._update(batches, count, None)

    def _update(self, batches: Iterable[Batch], count: int, state: Any) -> UpdateResult:
        self._apply.zero_grad()  # a failed capture may have left gradients
        losses = []
        for number, batch in enumerate(batches, 1):
            with ExitStack() as stack:
                if number < count:  # processes exchange gradients once an update
                    stack.enter_context(self.fabric.no_backward_sync(cast(Any, self.module)))
                if self.settings.clip_scope == MAPPED:
                    limits = (self.settings.clip_norm, self.settings.clip_value)
                    stack.enter_context(clipped_matrices(self.model, *limits))
                extra = None if self._penalty is None else stack.enter_context(self._penalty.watch(self.model))
                outputs, state = evaluation.answer(self.module, batch, state, None if self._padded else False)
                loss = self.task.loss(outputs, batch.targets)
                total = loss if extra is None else loss + extra(loss)
                self.fabric.backward(total if count == 1 else total / count)
                losses.append(loss.detach())
        return self.apply(losses[0] if count == 1 else torch.stack(losses).mean(), state)

    def penalized(self, loss: Tensor) -> Tensor:
        """The loss with the penalty, which must read the weights alone."""
        if self._penalty is None:
            return loss
        with self._penalty.watch(self.model) as extra:
            return loss + extra(loss)

    def apply(self, loss: Tensor, state: Any) -> UpdateResult:
        """Clip the gradients of a backward pass, make a step of the optimiser, and clear the gradients."""
        settings = self.settings
        norm = gradient_norm(self._trained)
        if settings.clip_norm is not None or settings.clip_value is not None:
            for group in self._clipped:
                measured = norm if settings.clip_scope == "all" else None
                clip(group, settings.clip_norm, settings.clip_value, measured)
        self._apply.step()
        self._apply.zero_grad()
        return UpdateResult(loss, norm, state)


def of_its_dtype(model: nn.Module, batch: Batch) -> Batch:
    """The batch in the model's dtype, for a model that is not called through Fabric."""
    if not batch.inputs.is_floating_point():
        return batch
    return batch._replace(inputs=batch.inputs.to(next(model.parameters()).dtype))


def optional(argument: Any) -> Any:
    """An argument of captured work, in which an empty tuple stands for None."""
    return None if isinstance(argument, tuple) and not argument else argument
