"""Vectors times ∂h_t/∂h_k, from either side, and its largest singular value, without the matrix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from evenflow.cells import State
from evenflow.probes.recurrence import Recurrence

LANCZOS = 16  # steps towards the largest singular value
HELD = 2**24  # numbers of state held at once

Array = np.ndarray[Any, np.dtype[np.float64]]


def pulled(path: Recurrence, t: int, ks: list[int], of: str, vectors: Tensor) -> Iterable[Tensor]:
    """``vᵀ ∂h_t/∂h_k`` for each row v of `vectors`, as ``(K, rows, B, columns)``, a few rows at a time."""
    batch = len(path.inputs[0])
    held = (t - ks[0] + 1) * batch * vectors.shape[-1]
    few = max(1, HELD // held)
    for some in vectors.split(few):
        some = some.to(path.inputs[0].device)
        states = _rerun(path, ks[0], t, len(some))
        end = torch.cat([s.unflatten(0, (len(some), batch)) for s in part(states[-1], of)], -1)
        value = (end * some.unsqueeze(1)).sum()
        wanted = [s for k in ks for s in part(states[k - ks[0]], of)]
        grads = torch.autograd.grad(value, wanted, allow_unused=True)
        filled = [torch.zeros_like(s) if g is None else g for s, g in zip(wanted, grads, strict=True)]
        parts = len(filled) // len(ks)
        joined = [torch.cat(filled[i : i + parts], -1) for i in range(0, len(filled), parts)]
        yield torch.stack(joined).unflatten(1, (len(some), batch))


def _rerun(path: Recurrence, k: int, t: int, copies: int) -> list[State]:
    """The states after steps k..t of `copies` of the batch, as a graph that begins at the one after step k."""
    state = tuple(s.repeat(copies, 1).requires_grad_() for s in path.states[k + 1])
    states = [state]
    for step in range(k + 1, t + 1):
        # Views, because h_t is made from c_t: the gradient by a view of c_t leaves that way out.
        states.append(tuple(s.view_as(s) for s in path.step(step, states[-1], copies)))
    return states


def largest_singular_value(path: Recurrence, t: int, k: int, of: str, size: int, generator: torch.Generator) -> Array:
    """The largest singular value of ∂h_t/∂h_k for each sequence, by Golub-Kahan bidiagonalisation, ``(B,)``."""
    states = _rerun(path, k, t, 1)
    start, end = (torch.cat(part(s, of), -1) for s in (states[0], states[-1]))
    wanted = part(states[0], of)

    def pull(u: Tensor) -> Tensor:
        if not end.requires_grad:
            return torch.zeros_like(u)
        grads = torch.autograd.grad(end, wanted, u, retain_graph=True, allow_unused=True)
        return torch.cat([torch.zeros_like(s) if g is None else g for s, g in zip(wanted, grads, strict=True)], -1)

    def push(v: Tensor) -> Tensor:
        given = v.split([s.shape[-1] for s in wanted], -1)
        with torch.no_grad(), forward_ad.dual_level():
            state: State = tuple(
                forward_ad.make_dual(s, given[i]) if i < len(given) else s for i, s in enumerate(path.states[k + 1])
            )
            for step in range(k + 1, t + 1):
                state = path.step(step, state)
            tangents = [forward_ad.unpack_dual(s).tangent for s in part(state, of)]
            parts = zip(tangents, part(state, of), strict=True)
            return torch.cat([torch.zeros_like(s) if tangent is None else tangent for tangent, s in parts], -1)

    v = _unit(torch.randn(start.shape, dtype=torch.float64, generator=generator).to(start.device))
    left: list[Tensor] = []
    right, above = [v], []
    diagonal: list[Tensor] = []
    for _ in range(min(LANCZOS, size)):
        u = _orthogonal(push(right[-1]), left)
        diagonal.append(u.norm(dim=-1))
        left.append(_unit(u))
        v = _orthogonal(pull(left[-1]), right)
        above.append(v.norm(dim=-1))
        right.append(_unit(v))
    bidiagonal = torch.diag_embed(torch.stack(diagonal, -1))
    if len(above) > 1:
        bidiagonal = bidiagonal + torch.diag_embed(torch.stack(above[:-1], -1), offset=1)
    infinite = ~torch.isfinite(bidiagonal).all(-1).all(-1)
    found = torch.linalg.matrix_norm(bidiagonal.nan_to_num(0, 0, 0), 2)
    return found.masked_fill(infinite, torch.inf).cpu().numpy()


def _orthogonal(v: Tensor, basis: list[Tensor]) -> Tensor:
    """v without its parts along the basis, taken off twice against rounding."""
    for _ in range(2):
        for b in basis:
            v = v - (v * b).sum(-1, keepdim=True) * b
    return v


def _unit(v: Tensor) -> Tensor:
    size = v.norm(dim=-1, keepdim=True)
    return torch.where(size > 0, v / size, torch.zeros_like(v))


def part(state: State, of: str) -> State:
    return state[:1] if of == "output" else state
