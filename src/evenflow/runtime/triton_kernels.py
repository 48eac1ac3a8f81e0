"""Kernels in Triton, which torch for CUDA brings along: whether they can run here."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

_works: bool | None = None  # once it has been tried


def compiled() -> bool:
    """Whether compiled code and kernels are wanted: not where ``EVENFLOW_NATIVE=0`` says so."""
    return os.environ.get("EVENFLOW_NATIVE", "1") != "0"


def small_kernels(name: str, like: Tensor) -> ModuleType | None:
    """The module called `name` of kernels for tensors such as `like`; None where they are not wanted or cannot run.

    Triton makes kernels at first use and needs a C compiler for it. Where that fails, it is said once, and products of
    matrices take their place.
    """
    if not like.is_cuda or not compiled() or not _tried(like.device):
        return None
    return import_module(name)


def _tried(device: torch.device) -> bool:
    global _works
    if _works is None:
        if torch.cuda.is_current_stream_capturing() or torch._C._len_torch_dispatch_stack():
            return False  # not now: no fair trial
        _works = _trial(device) if find_spec("triton") is not None else False
    return bool(_works)


def _trial(device: torch.device) -> bool | None:
    """Whether a kernel runs; None where that cannot be told yet."""
    try:
        kernels = import_module("evenflow.maps.rotations_cuda")
        kernels.value(torch.zeros(1, 1, device=device), torch.arange(2, device=device).unsqueeze(0))
    except torch.OutOfMemoryError:
        return None
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        warnings.warn(
            f"evenflow does without its kernels for maps and projections, which Triton could not make: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True
