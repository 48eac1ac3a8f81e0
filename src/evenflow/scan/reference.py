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
    resets: Tensor | None = None,
    learned: bool = False,
) -> tuple[Tensor, ...]:
    """Run `cell` over all steps of `a` and return every state it passed through.

    ``s_t = step(a_t, s_{t-1})``, and ``tap_t`` is added to the first member of s_t.

    Shapes:
        a: ``(T, B, blocks * H)``; state: each ``(B, H)``; result: each ``(T, B, H)``.

    Args:
        batch_sizes: how many of the B sequences, longest first, are still running at each step; a sequence that has
            ended gives zeros.
        tap: zeros ``(T, B, H)`` whose gradient will be ∂L/∂h_t.
        resets: ``(T, B)``, True where s_{t-1} is replaced before the step: by zeros, or, if `learned`, by the initial
            states that are among the weights, ``h0`` and so on, each ``(H,)``.
    """
    starts = [weights[f"{name}0"] if learned else state[0].new_zeros(()) for name in cell.states]
    rows = a.shape[1]
    steps = []
    taps = [None] * len(a) if tap is None else tap.unbind(0)
    for t, (a_t, tap_t) in enumerate(zip(a.unbind(0), taps, strict=True)):
        running = rows if batch_sizes is None else batch_sizes[t]
        state = tuple(s[:running] for s in state)
        if resets is not None:
            at = resets[t, :running].unsqueeze(-1)
            state = tuple(torch.where(at, start, s) for start, s in zip(starts, state, strict=True))
        state = cell.advance(a_t[:running], state, weights)
        if tap_t is not None:
            state = (state[0] + tap_t[:running], *state[1:])
        steps.append([torch.nn.functional.pad(s, (0, 0, 0, rows - running)) for s in state])
    return tuple(torch.stack(member) for member in zip(*steps, strict=True))
