"""What the Python sides of the kernels share: which problems fit, ragged rows, and the weight gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan.cuda import plan

OLDEST, CLUSTERS = (7, 0), (9, 0)  # compute capabilities: the oldest tried for, and the first with clusters


def fits(table: plan.Table, weight: Tensor, *tensors: Tensor | None) -> bool:
    """Whether the kernels of `table` can take these tensors: on one GPU, in single precision, of a size covered."""
    given = [t for t in (weight, *tensors) if t is not None]
    if torch.version.cuda is None or not all(t.is_cuda and t.device == weight.device for t in given):
        return False
    # An output that was not kept is empty, and its dtype is the state's.
    if any(t.dtype != torch.float32 for t in given) or weight.numel() == 0:
        return False
    capability = torch.cuda.get_device_capability(weight.device)
    return capability >= OLDEST and plan.covers(table, weight.shape[-1], capability >= CLUSTERS)


def tile(table: plan.Table, states: Tensor) -> plan.Tile:
    """The plan's tile for states ``(M, T, B, H)`` on their GPU; on an H200 where they are on none."""
    models, _, batch, hidden = states.shape
    if not states.is_cuda:
        return plan.choose(table, hidden, batch, models)
    processors = torch.cuda.get_device_properties(states.device).multi_processor_count
    clusters = torch.cuda.get_device_capability(states.device) >= CLUSTERS
    return plan.choose(table, hidden, batch, models, processors, clusters)


def lengths(batch_sizes: Sequence[int] | None, batch: int, like: Tensor) -> Tensor | None:
    """Steps of each row, longest first, from the rows of each step; None when all run to the end."""
    if batch_sizes is None:
        return None
    rising = torch.tensor(batch_sizes).flip(0)
    ended = torch.searchsorted(rising, torch.arange(batch), right=True)
    return (len(batch_sizes) - ended).to(torch.int32).to(like.device)


def weight_gradient(d: Tensor, x: Tensor, x0: Tensor) -> Tensor:
    """``Σ_t d_t' x_{t-1}`` with x_{-1} = x0: one large product.

    Shapes:
        d: ``(M, T, B, L)``; x: ``(M, T, B, R)``; x0: ``(M, B, R)``; result ``(M, L, R)``.
    """
    first, left, right = d[:, 0].mT, d[:, 1:].flatten(1, 2).mT, x[:, :-1].flatten(1, 2)
    if len(d) == 1:  # a plain product may be split over its long inner side, a batched one is not
        return torch.addmm(first[0] @ x0[0], left[0], right[0]).unsqueeze(0)
    return torch.baddbmm(first @ x0, left, right)
