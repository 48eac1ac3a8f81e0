"""How much of the loss's gradient reaches back to each time step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evenflow.model import SequenceModel
from evenflow.recurrent import Recurrent


def gradient_flow(
    model: SequenceModel,
    inputs: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    lengths: Tensor | None = None,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """``‖∂L/∂h_t‖`` of the top layer for every step t, averaged over the batch.

    Shapes:
        inputs ``(T, B, I)``, or ``(T, B)`` of whole numbers; result ``(T,)``. Of a bidirectional layer, the forward
        direction.

    Args:
        model: a `SequenceModel` over a layer of evenflow.
        loss: of outputs and targets; a mean over the batch, whose size is multiplied out again.

    A vanishing gradient falls towards the first step, an exploding one rises. Neither the model's gradients nor its
    mode nor any random state is changed; dropout is off.

    >>> flow = gradient_flow(model, batch.inputs, batch.targets, task.loss)
    >>> flow[0] / flow[-1]  # what is left of it at the first step
    """
    layer = model.layer
    if not isinstance(layer, Recurrent):
        raise ValueError(f"gradient_flow needs a layer of evenflow, got {type(layer).__name__}")
    training = model.training
    model.eval()
    try:
        with torch.enable_grad(), layer.taps() as taps:
            outputs, _ = model(inputs, lengths=lengths)
            value = loss(outputs, targets)
            top = taps[-2 if layer.bidirectional else -1]
            # By the tap alone, so that no parameter's gradient is touched.
            (flow,) = torch.autograd.grad(value, [top])
    finally:
        model.train(training)
    norms = torch.linalg.vector_norm(flow.double(), dim=-1)  # (T, B); zero beyond a sequence's end
    return (norms.mean(1) * flow.shape[1]).cpu().numpy()
