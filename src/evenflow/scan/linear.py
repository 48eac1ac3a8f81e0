"""Recurrences that are linear in their states, in torch operations that run over all pieces of a sequence at once.

``s_t = A_t s_{t-1} + b_t``, where A and b read no state and no unit reads another one, so that A is a few numbers for
each unit: one for a real state, two by two for the halves of a complex one. A piece of a sequence then is such a step
too: its A is the product of those of its steps, and its b the state that it reaches from zero. All pieces are summed up
at once, the recurrence of the pieces gives the state before each of them (again in pieces), and then all pieces run
once more from there. T steps take ``3 c log T / log c`` operations of torch in pieces of c steps instead of T.

The backward pass is the same recurrence from the last step to the first, with A transposed. Which steps are linear is
found from their graphs, see `step.linear_step`. Reference: Blelloch 1990.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evenflow.scan.engine import ScanInputs
from evenflow.step.compute import Values, blocks, joined
from evenflow.step.graph import Node
from evenflow.step.linear_step import LinearStep

PIECE = 16  # steps of a piece
LEAST_STEPS = 64  # fewer steps run one after another
Entry = Tensor | None  # None for zero
Rows = Sequence[Sequence[Entry]]


def pays(a: Tensor) -> bool:
    """Whether pieces are faster than the loop for a ``(M, T, B, size)``."""
    if a.is_cuda and torch.cuda.is_current_stream_capturing():  # `scan` reads a number, which a capture does not allow
        return False
    return a.shape[1] > LEAST_STEPS and a.numel() > 0


def forward(inputs: ScanInputs) -> list[Tensor] | None:
    """All states of a step that is linear; None for other steps, and where numbers are not finite."""
    step, a, program = inputs.step.linear_forward, inputs.a, inputs.step.program
    if step is None:
        return None
    values: Values = blocks(a, program.a) | blocks(inputs.resets, program.resets)
    for nodes, tensor in zip(program.parameters, inputs.parameters, strict=True):
        values |= {v: x.unsqueeze(1) for v, x in blocks(tensor, nodes, rows=True).items()}
    ended = _ended(inputs.batch_sizes, a)
    rows, added = _evaluated(step, values, a, ended)
    states = [a.new_empty(*a.shape[:-1], size) for size in inputs.step.state_sizes]
    first = [x for s, nodes in zip(inputs.states, program.states, strict=True) for x in blocks(s, nodes).values()]
    out = [s for whole, nodes in zip(states, program.new, strict=True) for s in _columns(whole, nodes)]
    return states if scan(rows, added, first, out) else None


def backward(
    inputs: ScanInputs, values: Values, grads: Sequence[Tensor | None], like: Tensor
) -> tuple[list[Tensor], list[Tensor]] | None:
    """The gradients by the states after each step and those by the first states; None as in `forward`.

    Args:
        values: what the forward pass has stored, and what the backward pass computes from it for all steps at once.
        grads: by each state, None for zeros.
        like: a state, ``(M, T, B, size)``.
    """
    step, by_new = inputs.step.linear_backward, inputs.step.places.gradient.by_new
    if step is None:
        return None
    ended = _ended(inputs.batch_sizes, like)
    rows, _ = _evaluated(step, dict(values), like, ended)
    arriving: list[Entry] = []
    for grad, nodes in zip(grads, by_new, strict=True):
        if grad is not None and ended is not None:
            grad = grad.masked_fill(ended, 0)
        arriving += [None] * len(nodes) if grad is None else blocks(grad.flip(1), nodes).values()
    reverse = [like.new_empty(*like.shape[:-1], size) for size in inputs.step.state_sizes]
    out = [s for whole, nodes in zip(reverse, by_new, strict=True) for s in _columns(whole, nodes)]
    zeros = [torch.zeros_like(v[:, 0]) for v in out]
    if not scan([[_turned(v) for v in row] for row in rows], arriving, zeros, out):
        return None
    at_first = [[None if v is None else v[:, 0] for v in row] for row in rows]
    total = [_row(row, [v[:, -1] for v in out], None) for row in at_first]
    parts = iter([torch.zeros_like(z) if v is None else v.expand_as(z) for v, z in zip(total, zeros, strict=True)])
    carry = [joined([next(parts) for _ in nodes]).contiguous() for nodes in by_new]
    return [s.flip(1) for s in reverse], carry


def scan(rows: Rows, added: Sequence[Entry], first: Sequence[Tensor], out: Sequence[Tensor]) -> bool:
    """Write all states of ``s_t = A_t s_{t-1} + b_t``; return False, with nothing written, where a number overflows.

    A product of many A may overflow where the states do not, as zeros that it would be multiplied with.

    Shapes:
        rows: A, each ``(M, T or 1, B or 1, n or 1)``; added: b, each as A; first: ``(M, B, n)``; out: ``(M, T, B, n)``.
    """
    steps = out[0].shape[1]
    if steps <= LEAST_STEPS:
        listed = [v for row in (*rows, added) for v in row if v is not None]
        if listed and not bool(torch.stack([v.isfinite().all() for v in listed]).all()):
            return False
        _run(rows, added, first, out)
        return True
    count = steps // PIECE
    cut_rows, cut_added = [[_cut(v, count) for v in row] for row in rows], [_cut(v, count) for v in added]
    whole, reached = _summary(cut_rows, cut_added, count)
    ends = [v.new_empty(v.shape[0], count, *v.shape[2:]) for v in out]
    if not scan(whole, reached, first, ends):
        return False
    before = [torch.cat([f.unsqueeze(1), end[:, :-1]], 1) for f, end in zip(first, ends, strict=True)]
    done = count * PIECE
    _run(cut_rows, cut_added, before, [v[:, :done].unflatten(1, (count, PIECE)) for v in out], 2)
    if done < steps:
        rest_rows, rest = [[_after(v, done) for v in row] for row in rows], [_after(v, done) for v in added]
        _run(rest_rows, rest, [v[:, done - 1] for v in out], [v[:, done:] for v in out])
    return True


def _run(rows: Rows, added: Sequence[Entry], state: Sequence[Tensor], out: Sequence[Tensor], time: int = 1) -> None:
    """Write the states of one step after another, along the dimension `time`."""
    for t in range(out[0].shape[time]):
        now = [_row([_at(v, t, time) for v in row], state, _at(b, t, time)) for row, b in zip(rows, added, strict=True)]
        for to, v in zip(out, now, strict=True):
            to.select(time, t).copy_(v if v is not None else to.new_zeros(()))
        state = [to.select(time, t) for to in out]


def _summary(rows: Rows, added: Sequence[Entry], count: int) -> tuple[list[list[Entry]], list[Entry]]:
    """A and b of pieces, from those of their steps, ``(M, pieces or 1, steps or 1, B or 1, n or 1)`` each."""
    product = [[_at(v, 0, 2) for v in row] for row in rows]
    reached = [_at(v, 0, 2) for v in added]
    for t in range(1, PIECE):
        now = [[_at(v, t, 2) for v in row] for row in rows]
        columns = list(zip(*product, strict=True))
        product = [[_row(row, column, None) for column in columns] for row in now]
        reached = [_row(row, reached, _at(b, t, 2)) for row, b in zip(now, added, strict=True)]
    return product, reached


def _row(row: Sequence[Entry], state: Sequence[Entry], added: Entry) -> Entry:
    """``Σ_l A_l s_l + b``."""
    total = added
    for factor, x in zip(row, state, strict=True):
        if factor is not None and x is not None:
            total = factor * x if total is None else torch.addcmul(total, factor, x)
    return total


def _evaluated(
    step: LinearStep, values: Values, like: Tensor, ended: Tensor | None
) -> tuple[list[list[Entry]], list[Entry]]:
    """A and b for all steps at once, with four dimensions; zeros where a row has ended."""
    step.plan(values, [], like)

    def of(v: Node | None) -> Entry:
        if v is None:
            return None
        x = values[v]
        x = x.reshape((1,) * (4 - x.dim()) + tuple(x.shape))
        return x if ended is None else x.masked_fill(ended, 0)

    return [[of(v) for v in row] for row in step.coefficients], [of(v) for v in step.rest]


def _ended(batch_sizes: Sequence[int] | None, like: Tensor) -> Tensor | None:
    """Which rows have ended at each step, ``(1, T, B, 1)``."""
    if batch_sizes is None:
        return None
    sizes = torch.tensor(batch_sizes, device=like.device)
    return (torch.arange(like.shape[2], device=like.device) >= sizes.unsqueeze(1)).unsqueeze(-1).unsqueeze(0)


def _columns(whole: Tensor, nodes: Sequence[Node]) -> list[Tensor]:
    """The blocks of a tensor, as views."""
    return list(whole.split([v.width for v in nodes], -1))


def _turned(v: Entry) -> Entry:
    """A in reversed time, where a step multiplies by that of the step after it; the first multiplies zeros."""
    if v is None or v.shape[1] == 1:
        return v
    return torch.cat([torch.zeros_like(v[:, :1]), v[:, 1:].flip(1)], 1)


def _cut(v: Entry, count: int) -> Entry:
    if v is None:
        return None
    return v.unsqueeze(2) if v.shape[1] == 1 else v[:, : count * PIECE].unflatten(1, (count, PIECE))


def _after(v: Entry, done: int) -> Entry:
    return v if v is None or v.shape[1] == 1 else v[:, done:]


def _at(v: Entry, t: int, time: int) -> Entry:
    return None if v is None else v.select(time, t if v.shape[time] > 1 else 0)
