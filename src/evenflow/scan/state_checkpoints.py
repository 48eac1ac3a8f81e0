"""Activation checkpointing over time: saves the states between pieces of a sequence and recomputes each piece.

With pieces of one step every state is saved. Then the backward pass needs no second recurrence: what else it reads of a
step follows from the states, for many steps in one product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evenflow.cells import Cell, State, Weights
from evenflow.scan.backend import HALF
from evenflow.scan.projection import project
from evenflow.scan.recurrence import program, scan

# Numbers of a state in one piece if all states are saved: few enough for a processor's cache, and on a GPU enough for
# kernels to run longer than it takes to start them.
NUMBERS, LEAST_STEPS = {"cpu": 2**18, "cuda": 2**22}, 16


def checkpointed(
    cell: Cell,
    x: Tensor,
    state: State,
    weights: Weights,
    every: int,
    batch_sizes: Sequence[int] | None = None,
    tap: Tensor | None = None,
    engine: str = "auto",
    beside: Tensor | None = None,
    resets: Tensor | None = None,
    learned: bool = False,
) -> tuple[Tensor, ...]:
    """What `project` and `scan` compute, in the memory for one piece of `every` steps and one state per piece.

    The projected input, the gates and their gradients exist for one piece at a time; only the input, the output and
    their gradients are as long as the sequence. It costs a second forward pass.

    With `every` = 1 all states are saved and nothing else of a step; it costs a product over all steps. That is not
    possible for steps that cannot be translated, for ``engine="reference"``, and in half precision, where the running
    state is not the saved one: there about √T states are saved and the pieces are recomputed.

    Shapes:
        x: ``(T, B, I)``; state: each ``(B, H)``; result: the output ``(T, B, H)``, then the state after the last step
        of each sequence, each ``(B, H)``; beside: ``(T, B, ·)``, more columns for the scan, beside the projected input;
        resets: ``(T, B)``, see `reference.scan`.

    The gradient cannot be differentiated again. Reference: Griewank 1992.
    """
    device = x.device.type
    casts = not x.is_meta and torch.is_autocast_enabled(device)
    autocast = torch.get_autocast_dtype(device) if casts else None
    dtype = weights[(*cell.recurrent, *cell.parameters, "weight_ih")[0]].dtype
    keeps_states = every == 1 and engine != "reference" and dtype not in HALF
    keeps_states = keeps_states and _translated(cell, x, state, weights, beside)
    if every == 1:
        numbers = NUMBERS["cuda" if x.is_cuda else "cpu"]
        steps = max(LEAST_STEPS, numbers // max(1, state[0].numel()))
        every = steps if keeps_states else math.isqrt(len(x))
    plan = _Segments(cell, tuple(weights), every, batch_sizes, engine, autocast, len(state), keeps_states, learned)
    return _Checkpointed.apply(plan, x, beside, tap, resets, *(s.to(dtype) for s in state), *weights.values())


def _translated(cell: Cell, x: Tensor, state: State, weights: Weights, beside: Tensor | None) -> bool:
    """Whether the step is translated, so that what it keeps can be recomputed from the states."""
    if x.is_meta:
        return False
    with torch.no_grad():
        a = project(cell, x[:1], weights)
    a = a if beside is None else torch.cat((a, beside[:1]), -1)
    step, _ = program(cell, a, state, *cell.arguments(weights))
    return step is not None


@dataclass(frozen=True)
class _Segments:
    """The arguments of `checkpointed` that are no tensors."""

    cell: Cell
    names: tuple[str, ...]
    every: int
    batch_sizes: Sequence[int] | None
    engine: str
    autocast: torch.dtype | None  # autocast of the forward pass, to be restored when it is recomputed
    members: int
    keeps_states: bool
    learned: bool

    def pieces(self, steps: int) -> list[slice]:
        return [slice(t, min(t + self.every, steps)) for t in range(0, steps, self.every)]

    def run(
        self,
        piece: slice,
        x: Tensor,
        beside: Tensor | None,
        tap: Tensor | None,
        resets: Tensor | None,
        state: State,
        weights: Sequence[Tensor],
        computed_states: State | None = None,
    ) -> tuple[State, State]:
        """The states of one piece, and each sequence's state after it; a sequence that has ended keeps its last."""
        named = dict(zip(self.names, weights, strict=True))
        sizes = None if self.batch_sizes is None else list(self.batch_sizes[piece])
        casts = self.autocast is not None
        with nullcontext() if x.is_meta else torch.autocast(x.device.type, self.autocast, enabled=casts):
            a = project(self.cell, x, named, self.engine)
        a = a if beside is None else torch.cat((a, beside), -1)
        options: dict[str, Any] = {"computed_states": computed_states, "resets": resets, "learned": self.learned}
        states = scan(self.cell, a, state, named, sizes, tap, self.engine, **options)
        if sizes is None:
            return states, tuple(s[-1] for s in states)
        rows = torch.arange(x.shape[1], device=x.device)
        lengths = (torch.tensor(sizes, device=x.device).unsqueeze(1) > rows).sum(0)
        runs = (lengths > 0).unsqueeze(1)
        ends = (s[(lengths - 1).clamp(min=0), rows] for s in states)
        return states, tuple(torch.where(runs, end, before) for end, before in zip(ends, state, strict=True))


class _Checkpointed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        plan: _Segments,
        x: Tensor,
        beside: Tensor | None,
        tap: Tensor | None,
        resets: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        state, weights = tensors[: plan.members], tensors[plan.members :]
        pieces = plan.pieces(len(x))
        # What outlives a piece is allocated first: small tensors among the freed ones of a piece would fragment that
        # memory, and the next piece would need more.
        starts = 1 if plan.keeps_states else len(pieces)  # the other starts are among the states
        between = [s.new_empty(starts, *s.shape) for s in state]
        last = [s.clone() for s in state]
        whole = [s.new_empty(*x.shape[:2], s.shape[-1]) for s in (state if plan.keeps_states else state[:1])]
        for index, piece in enumerate(pieces):
            for kept, first in zip(between, last, strict=True):
                kept[index : index + 1] = first
            columns, restarts = _of(beside, piece), _of(resets, piece)
            states, ends = plan.run(piece, x[piece], columns, None, restarts, tuple(last), weights)
            for to, part in zip(whole, states, strict=False):
                to[piece] = part
            for to, end in zip(last, ends, strict=True):
                to.copy_(end)
        ctx.plan = plan
        ctx.save_for_backward(x, beside, resets, *weights, *between, *(whole if plan.keeps_states else ()))
        ctx.set_materialize_grads(False)
        return whole[0], *last

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *after: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: a second derivative would silently lack a part
            raise RuntimeError(
                "with checkpoint_every a gradient cannot be differentiated again; set it to None for that"
            )
        plan: _Segments = ctx.plan
        x, beside, resets, *rest = ctx.saved_tensors
        count = len(plan.names)
        weights, between, saved_states = rest[:count], rest[count : count + plan.members], rest[count + plan.members :]
        _, wants_x, wants_beside, wants_tap, _, *wants = ctx.needs_input_grad
        some = next(
            (g for g in (grad, *after) if g is not None), x
        )  # several gradients in one tensor under `is_grads_batched`
        d_x = some.new_empty(x.shape, dtype=x.dtype) if wants_x else None
        d_beside = some.new_empty(beside.shape, dtype=beside.dtype) if wants_beside else None
        pieces = plan.pieces(len(x))
        zeros = between[0].new_zeros(pieces[0].stop, *between[0].shape[1:]) if wants_tap else None
        d_tap = None if zeros is None else some.new_empty(len(x), *zeros.shape[1:], dtype=zeros.dtype)
        sums: list[Tensor | None] = [None] * len(weights)  # of the gradients by the weights, over the pieces
        for index in reversed(range(len(pieces))):
            piece = pieces[index]
            piece_x = x[piece].detach().requires_grad_(wants_x)
            piece_beside = None if beside is None else beside[piece].detach().requires_grad_(wants_beside)
            piece_tap = None if zeros is None else zeros[: len(piece_x)].detach().requires_grad_()
            # The states of rows that have ended are zero; with what these rows begin a piece makes no difference.
            among_states = index > 0 and bool(saved_states)
            first = [s[piece.start - 1] for s in saved_states] if among_states else [s[index] for s in between]
            state = [s.detach().requires_grad_() for s in first]
            leaves = [w.detach().requires_grad_(want) for w, want in zip(weights, wants[plan.members :], strict=True)]
            with torch.enable_grad():
                states_of_piece = tuple(whole[piece] for whole in saved_states) or None
                inputs = (piece_x, piece_beside, piece_tap, _of(resets, piece), tuple(state))
                states, ends = plan.run(piece, *inputs, leaves, states_of_piece)
            outputs = (states[0], *ends)
            incoming = [None if grad is None else grad[piece], *after]
            running = (piece_x, piece_beside, piece_tap, *state, *leaves)
            moving = [v for v in running if v is not None and v.requires_grad]
            paths = [(o, g) for o, g in zip(outputs, incoming, strict=True) if g is not None and o.requires_grad]
            gradients = iter(_gradients(paths, moving))
            if d_x is not None:
                d_x[piece] = _or_zero(next(gradients), piece_x)
            if d_beside is not None:
                d_beside[piece] = _or_zero(next(gradients), d_beside[piece])
            if d_tap is not None:
                d_tap[piece] = _or_zero(next(gradients), d_tap[piece])
            after = tuple(next(gradients) for _ in state)
            for i, leaf in enumerate(leaves):
                if leaf.requires_grad and (new := next(gradients)) is not None:
                    if (sum_so_far := sums[i]) is None:
                        sums[i] = new.clone()
                    else:
                        sum_so_far.add_(new)
        d_state = (g if want else None for g, want in zip(after, wants, strict=False))
        return None, d_x, d_beside, d_tap, None, *d_state, *sums


def _gradients(paths: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor]) -> Sequence[Tensor | None]:
    if not paths:
        return [None] * len(inputs)
    outputs, incoming = zip(*paths, strict=True)
    return torch.autograd.grad(outputs, inputs, incoming, allow_unused=True)


def _of(columns: Tensor | None, piece: slice) -> Tensor | None:
    return None if columns is None else columns[piece]


def _or_zero(value: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if value is None else value
