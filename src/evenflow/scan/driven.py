"""What the states before drive, for all steps at once: where every state is known, nothing has to wait for another."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.maps.differentiated import ieee_products


def driven(weight: Tensor, h0: Tensor, states: Tensor) -> Tensor:
    """``W h_{t-1}`` of every step, in one product.

    Shapes:
        weight: ``(M, L, H)``; h0: ``(M, B, H)``; states: ``(M, T, B, H)``; result ``(M, T, B, L)``.

    In whole float32 whatever the user allows elsewhere: a slope that turns at zero is on one side of it or the other.
    """
    found = states.new_empty(*states.shape[:-1], weight.shape[1])
    with torch.no_grad(), ieee_products(states):
        torch.bmm(h0, weight.mT, out=found[:, 0])
        torch.bmm(states[:, :-1].flatten(1, 2), weight.mT, out=found[:, 1:].flatten(1, 2))
    return found


def before(first: Tensor, states: Tensor) -> Tensor:
    """The state that each step began with, ``(M, T, B, H)``."""
    return torch.cat([first.unsqueeze(1), states[:, :-1]], 1)
