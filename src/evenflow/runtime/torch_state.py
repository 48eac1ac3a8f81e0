"""Who follows the operations besides autograd: compilers, tracers, `torch.func` and forward-mode differentiation.

A gradient by hand, compiled code and a recording are made for autograd alone; for the others the same equation is run
in operations that torch knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.autograd import forward_ad

Found = TypeVar("Found")


def traced() -> bool:
    """Whether a compiler or a tracer writes the operations down."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def untraced(find: Callable[[], Found]) -> Found:
    """What `find` gives, where `torch.jit.trace` does not see it: there sizes are tensors."""
    if torch.compiler.is_compiling() or not torch.jit.is_tracing():
        return find()
    tracing = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        return find()
    finally:
        torch._C._set_tracing_state(tracing)  # type: ignore[attr-defined]


def transformed() -> bool:
    """Whether somebody differentiates otherwise than by a backward pass: `torch.func`, or forward mode.

    `torch.vmap` alone does not count: the fused scans have a rule for it.
    """
    if torch.compiler.is_compiling():
        return False
    if forward_ad._current_level >= 0:
        return True
    vmap = torch._C._functorch.TransformType.Vmap
    return any(each.key() != vmap for each in torch._C._functorch.get_interpreter_stack() or ())


def lifted() -> bool:
    """Whether `torch.func` or forward mode has a say in what happens to tensors, `torch.vmap` included."""
    if torch.compiler.is_compiling():
        return False
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def followed() -> bool:
    """Whether anybody does."""
    return traced() or lifted()
