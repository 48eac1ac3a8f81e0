"""Registers a function of tensors with torch as an operator, so that compile, autograd and fake tensors know it."""

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
        run: does the work, on any device.
        fake: gives empty results of the right shapes.
        setup, backward: keep what is needed and give the gradients, as in `torch.library.register_autograd`. Without
            them a gradient through it is an error, which torch by itself would make zeros of.
        vmap: the rule for `torch.vmap`, as in `torch.library.register_vmap`; by default that of an operator whose
            tensors all have a leading dimension of models.

    This is `torch.library.custom_op` without its one drawback: that loads the compiler, some two seconds, at the first
    call.
    """
    full = f"evenflow::{name}"
    torch.library.define(full, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full, "CompositeExplicitAutograd", run)
    torch.library.register_fake(full, fake)
    torch.library.register_autograd(full, backward or _refuse, setup_context=setup)
    found = getattr(torch.ops.evenflow, name).default
    torch.library.register_vmap(full, vmap or _over_models(found))
    return found


def one_by_one(pull: Callable[[list[Tensor | None]], list[Tensor]], grads: Sequence[Tensor | None]) -> list[Tensor]:
    """What `pull` gives for each of the gradients that stand side by side; torch has no rule for lists of tensors."""
    apart = [_apart(g) if g is not None and is_batched_gradient(g) else (g, 0) for g in grads]
    level = max(level for _, level in apart)
    count = next(len(g) for g, own in apart if g is not None and own)
    each = [pull([g[n] if g is not None and own else g for g, own in apart]) for n in range(count)]
    return [torch._add_batch_dim(torch.stack(found), 0, level) for found in zip(*each, strict=True)]


def _apart(grad: Tensor) -> tuple[Tensor, int]:
    """The gradients below each other, and the level of torch's that had them side by side."""
    for level in range(1, 65):
        found = torch._remove_batch_dim(grad, level, 1, 0)  # of another level: as it is, with one dimension more
        if not is_batched_gradient(found):
            return found, level
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
        # What has nothing in it (numbers that were not kept) has no models to part.
        parted = [r.unflatten(0, (info.batch_size, -1)) if r.numel() else r for r in several]
        dims = [0 if r.numel() else None for r in several]
        if isinstance(results, Tensor):
            return parted[0], dims[0]
        return type(results)(parted), type(results)(dims)

    return rule
