"""Which of three ways runs a recurrence of given tensors: compiled code, a GPU's kernels, or torch operations."""

from __future__ import annotations

import warnings
from types import ModuleType

from torch import Tensor

from evenflow.maps.small_kernels import compiled
from evenflow.scan import native

LINEARIZED = "linearized"  # an engine: the fastest, whose gradient has one of its own by what comes in, all else held
_said: set[str] = set()


def choose(
    engine: str,
    weight: Tensor,
    members: tuple[Tensor | None, ...],
    native_code: ModuleType,
    gpu: ModuleType,
    plain: ModuleType,
) -> ModuleType:
    """The module whose `forward` and `backward` run these members, `weight` among them.

    ``engine="auto"`` and ``"linearized"`` take the fastest; anything else means torch operations. Where a GPU has to do
    without its kernels the reason is said, once per reason and process.
    """
    if engine not in ("auto", LINEARIZED) or not compiled():
        return plain
    if native.runs(*members):
        return native_code
    if not weight.is_cuda:
        return plain
    why = gpu.missing(weight, *members)
    if why is None:
        return gpu
    if weight.numel() and why not in _said:
        _said.add(why)
        warnings.warn(
            f"evenflow runs a recurrence step by step, up to a hundred times slower than its GPU kernels: {why}",
            RuntimeWarning,
            stacklevel=2,
        )
    return plain
