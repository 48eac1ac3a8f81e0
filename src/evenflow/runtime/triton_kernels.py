"""Load modules of Triton kernels where Triton, which torch for CUDA brings along, can compile and run a kernel."""

from __future__ import annotations

import functools
import warnings
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from evenflow.runtime.torch_state import compiled_code_allowed, in_dispatch_mode


class _NoTrialNow(RuntimeError):
    """Triton cannot be tried at this moment: the answer is not cached."""


def triton_module(name: str, like: Tensor) -> ModuleType | None:
    """The module `name` of Triton kernels for tensors such as `like`, or None where its kernels cannot run.

    Triton compiles kernels at first use and needs a C compiler for it. Where that fails, one warning is given and
    torch's matrix products run instead.
    """
    if not like.is_cuda or not compiled_code_allowed():
        return None
    try:
        return import_module(name) if _triton_works(like.device) else None
    except (_NoTrialNow, torch.OutOfMemoryError):
        return None


@functools.cache
def _triton_works(device: torch.device) -> bool:
    """Run one small kernel on `device`."""
    if torch.cuda.is_current_stream_capturing() or in_dispatch_mode():
        raise _NoTrialNow
    if find_spec("triton") is None:
        return False
    try:
        import_module("evenflow.runtime.triton_trial").run(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        warnings.warn(
            f"evenflow does without its kernels for maps and projections, which Triton could not make: {reason}",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    return True
