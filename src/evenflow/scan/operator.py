"""Registers a function of tensors with torch as an operator, so that compile, autograd and fake tensors know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def operator(
    name: str,
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    setup: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> Any:
    """The operator ``evenflow::name``.

    Args:
        schema: types of arguments and results, in torch's notation.
        run: does the work, on any device.
        fake: gives empty results of the right shapes.
        setup, backward: keep what is needed and give the gradients, as in `torch.library.register_autograd`.

    This is `torch.library.custom_op` without its one drawback: that loads the compiler, some two seconds, at the first
    call.
    """
    full = f"evenflow::{name}"
    torch.library.define(full, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full, "CompositeExplicitAutograd", run)
    torch.library.register_fake(full, fake)
    if backward is not None:
        torch.library.register_autograd(full, backward, setup_context=setup)
    return getattr(torch.ops.evenflow, name).default
