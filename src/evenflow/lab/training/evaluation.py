"""A model's answers to batches, with the state carried where the task asks for it, and their mean loss and metric."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from evenflow.lab.tasks import Batch, Task
from evenflow.models.sequence_model import SequenceModel

# Sequences in a batch of a whole pass, at least: nothing is kept for a gradient, so a larger one than in training fits.
AT_LEAST = 256


def answer(model: nn.Module, batch: Batch, state: Any = None, padded: bool | None = None) -> tuple[Tensor, Any]:
    """Outputs and final state; the given state is where the batch begins if it goes on from the one before.

    Ragged batches run padded or not, by default where a GPU would have to wait for the host to sort them.
    """
    options: dict[str, Any] = {"lengths": batch.lengths, "state": state if batch.carried else None}
    if batch.lengths is not None and (batch.inputs.is_cuda if padded is None else padded) and runs_padded(model):
        options["padded"] = True
    return model(batch.inputs, **{name: value for name, value in options.items() if value is not None})


def runs_padded(model: nn.Module) -> bool:
    """Whether a model, or the one that Fabric has wrapped, can run ragged batches padded."""
    # By its name: to import it would load all of Fabric.
    inner = cast(nn.Module, model.module) if type(model).__name__ == "_FabricModule" else model
    return isinstance(inner, SequenceModel) and type(inner).forward is SequenceModel.forward and inner.one_way


@torch.no_grad()
def sums(model: nn.Module, task: Task, batches: Iterable[Batch], device: torch.device) -> Tensor:
    """Loss, metric and weight, summed over the batches: the first two divided by the third are means over all answers.

    The model is left in training mode.
    """
    model.eval()
    total, state = torch.zeros(3, device=device), None
    for batch in batches:
        outputs, state = answer(model, batch, state)
        loss, metric = task.loss(outputs, batch.targets), task.metric(outputs, batch.targets)
        weight = torch.as_tensor(task.weight(batch), dtype=total.dtype, device=device)
        total += weight * torch.stack((loss, metric, torch.ones_like(loss)))
    model.train()
    return total


def cut(state: Any) -> Any:
    """The state without its past: gradients stop here. A network without time has none."""
    if state is None:
        return None
    return tuple(cut(part) for part in state) if isinstance(state, tuple) else state.detach()


def move(state: Any, device: torch.device) -> Any:
    """The state, a tensor or a tuple of them or None, on another device."""
    if state is None:
        return None
    return tuple(move(part, device) for part in state) if isinstance(state, tuple) else state.to(device)
