"""Gradient clipping by value and by norm: of everything, of the recurrent matrices, or of every tensor by itself."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

SCOPES = ("all", "recurrent", "each")
RECURRENT = "weight_hh"


def in_scope(model: nn.Module, scope: str) -> list[list[nn.Parameter]]:
    """The trained parameters that are clipped, in groups that are clipped by themselves.

    One group of all, one of those with "weight_hh" in their name ("recurrent"), or as many as there are ("each").
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if scope == "each":
        return [[p] for _, p in named]
    return [[p for name, p in named if scope == "all" or RECURRENT in name]]


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of all gradients taken as one vector; it stays on the device, so nothing waits for it."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


def clip(
    parameters: list[nn.Parameter], norm: float | None, value: float | None, measured: Tensor | None = None
) -> None:
    """Clip gradients in place: first each entry to ``[-value, value]``, then the whole to ``norm``.

    Args:
        parameters: whose gradients.
        norm, value: the largest norm and the largest absolute entry; None leaves it alone.
        measured: the norm of these gradients if it is known already; used only when `value` is None.

    A gradient shorter than `norm` is left as it is, bit for bit.
    """
    if value is not None:
        torch.nn.utils.clip_grad_value_(parameters, value)
    if norm is not None:
        total = measured if measured is not None and value is None else gradient_norm(parameters)
        torch.nn.utils.clip_grads_with_norm_(parameters, norm, total)
