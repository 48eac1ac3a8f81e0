"""Which engine runs a recurrence: compiled code, a GPU's kernels, or torch operations."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.runtime.triton_kernels import compiled_code_allowed
from evenflow.scan import cpu, torch_operations
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.cuda import cuda_recurrence as gpu

LINEARIZED = "linearized"  # an engine: the fastest, whose gradient has one of its own by what arrives, all else held
_said: set[str] = set()


def choose(step: CompiledStep, engine: str, weight: Tensor, tensors: Sequence[Tensor]) -> Any:
    """The module whose `forward` and `backward` run these tensors, `weight` among them.

    ``engine="auto"`` and ``"linearized"`` take the fastest; anything else means torch operations. Where a GPU has to do
    without kernels the reason is said.
    """
    if engine not in ("auto", LINEARIZED) or not compiled_code_allowed():
        return torch_operations
    if cpu.runs(step, *tensors):
        return cpu
    if weight.device.type in ("cpu", "meta"):
        return torch_operations
    why = gpu.missing(step, weight, *tensors) if weight.is_cuda else f"there are none for {weight.device.type}"
    if why is None:
        return gpu
    if weight.numel():
        say("step by step, up to a hundred times slower than by GPU kernels", why)
    return torch_operations


def say(how: str, why: str) -> None:
    """That a recurrence runs slower than it could, once per reason and process."""
    # A compiler would compile anew with every reason that is said, so it is asked first.
    if torch.compiler.is_compiling() or why in _said:
        return
    _said.add(why)
    warnings.warn(f"evenflow runs a recurrence {how}: {why}", RuntimeWarning, stacklevel=3)
