"""Gradients of gated feedback by its weights, from those by what its units and gates see: products over all steps."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.scan.product import summed

# By a, feedback, gate, own, up, bias, shift, h0, c0 and every state.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def gradients(
    d: Tensor, h: Tensor, units: Tensor, gates: Tensor, factors: Tensor | None, h0: Tensor, gated: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by a, feedback, gate, own, up, bias and shift, empty where there is no such thing.

    Shapes:
        d: ``(M, T, B, L, blocks * H + L)``, by what each layer's units and gates see; others as in `gated_feedback`.

    Args:
        gated: whether the units have gates of their own.
    """
    models, steps, batch, L, wide = d.shape
    H = h.shape[-1] // L
    blocks = (wide - L) // H
    before = torch.cat([h0.unsqueeze(1), h[:, :-1]], 1).flatten(1, 2)  # (M, N, L H), N all rows of all steps
    d = d.flatten(1, 2)
    share, e = d[..., : blocks * H], d[..., blocks * H :]
    opened = gates.view(models, -1, L, L)
    by_sum = share[..., 2 * H : 3 * H] if gated else share  # by the sum of all feedback, of each layer
    if blocks == 3:
        by_sum = by_sum * units.view(models, -1, L, 4, H)[..., 0, :]  # r
    one = [before[..., i * H : (i + 1) * H] for i in range(L)]
    # h^i meets g^{ij} times what the sum of layer j gets, for all j at once.
    feedback = torch.stack([summed(one[i], (opened[..., i : i + 1] * by_sum).flatten(2)) for i in range(L)], 1)
    gate = summed(e.flatten(2), before)
    own, shift = h.new_empty(0), h.new_empty(0)
    if gated:
        inside = share[..., : 2 * H] if blocks == 3 else torch.cat([share[..., : 2 * H], share[..., 3 * H :]], -1)
        own = torch.stack([summed(inside[:, :, j], one[j]) for j in range(L)], 1)
    if blocks == 3:
        shift = by_sum.sum(1)
    below = h.flatten(1, 2)[..., : (L - 1) * H]
    below = below if factors is None else below * factors.flatten(1, 2)
    rows = [summed(d[:, :, j], below[..., (j - 1) * H : j * H]) for j in range(1, L)]
    up = torch.stack(rows, 1) if rows else d.new_empty(models, 0, wide, H)
    return d[:, :, 0].unflatten(1, (steps, batch)).contiguous(), feedback, gate, own, up, d[:, :, 1:].sum(1), shift
