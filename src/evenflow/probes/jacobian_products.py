"""Products of vectors with ∂h_t/∂h_k from either side, and its largest singular value, without the matrix."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

from evenflow.cells import State
from evenflow.probes.unrolled import Unrolled

LANCZOS = 16  # steps towards the largest singular value
HELD = 2**24  # numbers of state in memory at once


def vjps(unrolled: Unrolled, t: int, ks: list[int], of: str, vectors: Tensor) -> Iterable[Tensor]:
    """``vᵀ ∂h_t/∂h_k`` for each row v of `vectors`, as ``(K, rows, B, columns)``, a few rows at a time."""
    batch = len(unrolled.inputs[0])
    numbers = (t - ks[0] + 1) * batch * vectors.shape[-1]  # for each row
    for rows in vectors.split(max(1, HELD // numbers)):
        rows = rows.to(unrolled.inputs[0].device)
        states = _rerun(unrolled, ks[0], t, len(rows))
        end = torch.cat([s.unflatten(0, (len(rows), batch)) for s in state_part(states[-1], of)], -1)
        value = (end * rows.unsqueeze(1)).sum()
        starts = [s for k in ks for s in state_part(states[k - ks[0]], of)]
        grads = torch.autograd.grad(value, starts, allow_unused=True, materialize_grads=True)
        parts = len(grads) // len(ks)
        by_k = [torch.cat(grads[i : i + parts], -1) for i in range(0, len(grads), parts)]
        yield torch.stack(by_k).unflatten(1, (len(rows), batch))


def _rerun(unrolled: Unrolled, k: int, t: int, copies: int) -> list[State]:
    """The states after steps k..t of `copies` of the batch, in a graph that starts at the state after step k."""
    state = tuple(s.repeat(copies, 1).requires_grad_() for s in unrolled.states[k + 1])
    states = [state]
    for step in range(k + 1, t + 1):
        # Views: an LSTM computes h_t from c_t, and a gradient by a view of c_t leaves that path out.
        states.append(tuple(s.view_as(s) for s in unrolled.step(step, states[-1], copies)))
    return states


def largest_singular_value(
    unrolled: Unrolled, t: int, k: int, of: str, size: int, generator: torch.Generator
) -> NDArray[np.float64]:
    """The largest singular value of ∂h_t/∂h_k for each sequence, by Golub-Kahan bidiagonalisation, ``(B,)``."""
    states = _rerun(unrolled, k, t, 1)
    start, end = (torch.cat(state_part(s, of), -1) for s in (states[0], states[-1]))
    leaves = state_part(states[0], of)

    def vjp(u: Tensor) -> Tensor:
        if not end.requires_grad:
            return torch.zeros_like(u)
        grads = torch.autograd.grad(end, leaves, u, retain_graph=True, allow_unused=True, materialize_grads=True)
        return torch.cat(grads, -1)

    def jvp(v: Tensor) -> Tensor:
        tangents = v.split([s.shape[-1] for s in leaves], -1)
        with torch.no_grad(), forward_ad.dual_level():
            whole = unrolled.states[k + 1]
            duals = (forward_ad.make_dual(s, tangent) for s, tangent in zip(whole, tangents, strict=False))
            state: State = (*duals, *whole[len(tangents) :])
            for step in range(k + 1, t + 1):
                state = unrolled.step(step, state)
            results = [forward_ad.unpack_dual(s) for s in state_part(state, of)]
            return torch.cat([torch.zeros_like(s) if tangent is None else tangent for s, tangent in results], -1)

    v = _unit(torch.randn(start.shape, dtype=torch.float64, generator=generator).to(start.device))
    left: list[Tensor] = []
    right, above = [v], []
    diagonal: list[Tensor] = []
    for _ in range(min(LANCZOS, size)):
        u = _orthogonal(jvp(right[-1]), left)
        diagonal.append(u.norm(dim=-1))
        left.append(_unit(u))
        v = _orthogonal(vjp(left[-1]), right)
        above.append(v.norm(dim=-1))
        right.append(_unit(v))
    bidiagonal = torch.diag_embed(torch.stack(diagonal, -1))
    if len(above) > 1:
        bidiagonal = bidiagonal + torch.diag_embed(torch.stack(above[:-1], -1), offset=1)
    infinite = ~torch.isfinite(bidiagonal).all(-1).all(-1)
    largest = torch.linalg.matrix_norm(bidiagonal.nan_to_num(0, 0, 0), 2)
    return largest.masked_fill(infinite, torch.inf).cpu().numpy()


def _orthogonal(v: Tensor, basis: list[Tensor]) -> Tensor:
    """v minus its projections on the basis, subtracted twice against rounding."""
    for _ in range(2):
        for b in basis:
            v = v - (v * b).sum(-1, keepdim=True) * b
    return v


def _unit(v: Tensor) -> Tensor:
    size = v.norm(dim=-1, keepdim=True)
    return torch.where(size > 0, v / size, torch.zeros_like(v))


def state_part(state: State, of: str) -> State:
    """The part of a state that a Jacobian is of: h for ``"output"``, everything for ``"state"``."""
    return state[:1] if of == "output" else state
