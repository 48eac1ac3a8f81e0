"""Questions about global state: who observes torch's operations, how precise are products, may compiled code run?

Hand-written gradients, compiled code and captured CUDA graphs serve reverse-mode autograd alone. Under compilers,
tracers, `torch.func` and forward-mode differentiation the same equation runs in torch's own operations. The private
names of torch that these questions need are used in this file only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.nn.modules import module
from torch.nn.utils import parametrize

R = TypeVar("R")


def compiled_code_allowed() -> bool:
    """Return False where the environment has ``EVENFLOW_NATIVE=0``: no compiled code, no kernels."""
    return os.environ.get("EVENFLOW_NATIVE", "1") != "0"


def is_tracing() -> bool:
    """Return True while `torch.compile` or `torch.jit.trace` records the operations."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def without_tracing(function: Callable[[], R]) -> R:
    """Call `function` hidden from `torch.jit.trace`, under which sizes are tensors."""
    if torch.compiler.is_compiling() or not torch.jit.is_tracing():
        return function()
    tracing = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        return function()
    finally:
        torch._C._set_tracing_state(tracing)  # type: ignore[attr-defined]


def has_nonreverse_transform() -> bool:
    """Return True under forward-mode differentiation or a transform of `torch.func` other than `torch.vmap`.

    The fused scans have a rule for `torch.vmap`.
    """
    if torch.compiler.is_compiling():
        return False
    if forward_ad._current_level >= 0:
        return True
    vmap = torch._C._functorch.TransformType.Vmap
    return any(each.key() != vmap for each in torch._C._functorch.get_interpreter_stack() or ())


def in_functorch() -> bool:
    """Return True under forward-mode differentiation or any transform of `torch.func`, `torch.vmap` included."""
    if torch.compiler.is_compiling():
        return False
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def is_observed() -> bool:
    """Return True where a compiler, a tracer, `torch.func` or forward mode must see torch's own operations."""
    return is_tracing() or in_functorch()


def in_dispatch_mode() -> bool:
    """Return True inside a `TorchDispatchMode`, such as a counter of operations."""
    return torch._C._len_torch_dispatch_stack() > 0


def is_batched_gradient(value: Any) -> bool:
    """Return True for a tensor of several gradients, which `torch.autograd.grad` makes with ``is_grads_batched``."""
    return isinstance(value, Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)


def plain_tensors(values: Iterable[Any]) -> bool:
    """Return True where autograd alone observes these tensors: no transform, no dispatch mode, no subclass."""
    if is_observed() or in_dispatch_mode():
        return False
    return all(type(v) in (Tensor, Parameter) and not is_batched_gradient(v) for v in values if isinstance(v, Tensor))


def has_global_module_hook() -> bool:
    """Return True where a hook is registered for all modules."""
    return module._has_any_global_hook()


def parametrizations_are_cached() -> bool:
    """Return True inside ``parametrize.cached()``."""
    return bool(parametrize._cache_enabled)


def has_saved_tensor_hooks() -> bool:
    """Return True inside ``torch.autograd.graph.saved_tensors_hooks`` and `torch.utils.checkpoint`."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def stream_id(device: torch.device) -> int:
    """A number for the current CUDA stream of a device, without making a stream object."""
    return torch._C._cuda_getCurrentRawStream(device.index)


@contextmanager
def ieee_products(tensor: Tensor) -> Iterator[None]:
    """Compute matrix products on the device of `tensor` in full float32, where the user has allowed fewer digits.

    The ten bits of mantissa of TF32 are enough for a layer and not for an orthogonal matrix. The user's setting is
    restored after the block.
    """
    backend = torch.backends.cuda.matmul if tensor.is_cuda else torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = backend.fp32_precision
    if before in ("ieee", "none"):
        yield
        return
    backend.fp32_precision = "ieee"
    try:
        yield
    finally:
        backend.fp32_precision = before


def without_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Turn autocast off inside the backward of an autograd function, where `.backward()` is called under autocast."""

    def run(ctx: Any, *grads: Any) -> Any:
        flat = (g for each in grads for g in (each if isinstance(each, list | tuple) else (each,)))
        device = next((g.device.type for g in flat if g is not None), "cpu")
        if not torch.is_autocast_enabled(device):
            return backward(ctx, *grads)
        with torch.autocast(device, enabled=False):
            return backward(ctx, *grads)

    return run
