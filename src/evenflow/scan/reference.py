"""The loop over time that defines every scan."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.cells import Cell, State, Weights


def scan(
    cell: Cell,
    a: Tensor,
    state: State,
    weights: Weights,
    batch_sizes: Sequence[int] | None = None,
    tap: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Run `cell` over all steps of `a` and return every state it passed through.

    ``s_t = step(a_t, s_{t-1})``, and ``tap_t`` is added to the first member of s_t.

    Shapes:
        a: ``(T, B, blocks * H)``; state: each ``(B, H)``; result: each ``(T, B, H)``.

    Args:
        batch_sizes: how many of the B sequences, longest first, are still running at each step; a sequence that has
            ended gives zeros.
        tap: zeros ``(T, B, H)`` whose gradient will be ∂L/∂h_t.
    """
    rows = a.shape[1]
    steps = []
    taps = [None] * len(a) if tap is None else tap.unbind(0)
    for t, (a_t, tap_t) in enumerate(zip(a.unbind(0), taps, strict=True)):
        running = rows if batch_sizes is None else batch_sizes[t]
        state = cell.advance(a_t[:running], tuple(s[:running] for s in state), weights)
        if tap_t is not None:
            state = (state[0] + tap_t[:running], *state[1:])
        steps.append([torch.nn.functional.pad(s, (0, 0, 0, rows - running)) for s in state])
    return tuple(torch.stack(member) for member in zip(*steps, strict=True))
