"""Registers a function of tensors as an operator of torch, which compile, vmap and fake tensors can handle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from evenflow.runtime.torch_state import is_batched_gradient


def operator(
    name: str,
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    setup: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | None = None,
) -> Any:
    """The operator ``evenflow::name``.

    Args:
        schema: types of arguments and results, in torch's notation.
        run: the implementation, for any device.
        fake: returns empty results of the right shapes.
        setup, backward: save tensors and compute gradients, as in `torch.library.register_autograd`. Without them a
            gradient through the operator raises an error; torch by itself would return zeros.
        vmap: the rule for `torch.vmap`, as in `torch.library.register_vmap`. Default: the rule for operators whose
            tensors all have a leading dimension of models.

    Unlike `torch.library.custom_op` it does not load the compiler at the first call, which takes some two seconds.
    """
    full = f"evenflow::{name}"
    torch.library.define(full, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full, "CompositeExplicitAutograd", run)
    torch.library.register_fake(full, fake)
    torch.library.register_autograd(full, backward or _refuse, setup_context=setup)
    op = getattr(torch.ops.evenflow, name).default
    torch.library.register_vmap(full, vmap or _over_models(op))
    return op


def one_by_one(pull: Callable[[list[Tensor | None]], list[Tensor]], grads: Sequence[Tensor | None]) -> list[Tensor]:
    """Call `pull` for each of several gradients in one tensor (``is_grads_batched``), and join the results.

    torch has no rule for operators that take lists of such tensors.
    """
    apart = [_apart(g) if g is not None and is_batched_gradient(g) else (g, 0) for g in grads]
    level = max(level for _, level in apart)
    count = next(len(g) for g, own in apart if g is not None and own)
    each = [pull([g[n] if g is not None and own else g for g, own in apart]) for n in range(count)]
    return [torch._add_batch_dim(torch.stack(gradients), 0, level) for gradients in zip(*each, strict=True)]


def _apart(grad: Tensor) -> tuple[Tensor, int]:
    """The gradients along a new first dimension, and the level of torch's vmap that had joined them."""
    for level in range(1, 65):
        apart = torch._remove_batch_dim(grad, level, 1, 0)  # at another level it only adds a dimension
        if not is_batched_gradient(apart):
            return apart, level
    raise RuntimeError("gradients of a fused scan can be side by side once, not within each other")


def _refuse(ctx: Any, *grads: Tensor | None) -> Any:
    raise RuntimeError("the gradient of a fused scan has none of its own; a layer with engine='reference' has")


def _over_models(op: Any) -> Callable[..., Any]:
    """`torch.vmap` over an operator with a leading dimension of models: as many models more, in one call."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        def merged(value: Any, dim: Any) -> Any:
            if isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value):
                return [merged(v, d) for v, d in zip(value, dim or [None] * len(value), strict=True)]
            if not isinstance(value, Tensor):
                return value
            outer = value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            return outer.flatten(0, 1)

        results = op(*map(merged, arguments, in_dims))
        several = results if isinstance(results, list | tuple) else (results,)
        # An empty tensor stands for a missing one and has no dimension of models.
        parted = [r.unflatten(0, (info.batch_size, -1)) if r.numel() else r for r in several]
        dims = [0 if r.numel() else None for r in several]
        if isinstance(results, Tensor):
            return parted[0], dims[0]
        return type(results)(parted), type(results)(dims)

    return rule
