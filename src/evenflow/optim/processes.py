"""Averages over the processes of a distributed run."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist


def mean_over_processes(values: Tensor) -> Tensor:
    """Return the average of `values` over all processes, with the same bits in each process."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return values
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total / dist.get_world_size()
