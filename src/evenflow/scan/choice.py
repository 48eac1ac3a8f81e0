"""Which of three ways runs a recurrence of given tensors: compiled code, a GPU's kernels, or torch operations."""

from __future__ import annotations

import warnings
from types import ModuleType

import torch
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
    without kernels the reason is said.
    """
    if engine not in ("auto", LINEARIZED) or not compiled():
        return plain
    if native.runs(*members):
        return native_code
    if weight.device.type in ("cpu", "meta"):
        return plain
    why = gpu.missing(weight, *members) if weight.is_cuda else f"there are none for {weight.device.type}"
    if why is None:
        return gpu
    if weight.numel():
        say("step by step, up to a hundred times slower than by GPU kernels", why)
    return plain


def say(how: str, why: str) -> None:
    """That a recurrence runs slower than it could, once per reason and process."""
    # A compiler would compile anew with every reason that is said, so it is asked first.
    if torch.compiler.is_compiling() or why in _said:
        return
    _said.add(why)
    warnings.warn(f"evenflow runs a recurrence {how}: {why}", RuntimeWarning, stacklevel=3)
