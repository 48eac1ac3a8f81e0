"""Picks the fastest way to run a cell over time that gives what the reference loop gives."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from evenflow.activations import ACTIVATIONS
from evenflow.cells import (
    GRU,
    LSTM,
    LSTM1997,
    SCRN,
    Cell,
    ComplexElman,
    Elman,
    GatedFeedback,
    PeepholeLSTM,
    ScalarGated,
    State,
    Weights,
)
from evenflow.maps.onlookers import transformed
from evenflow.maps.small_kernels import compiled
from evenflow.scan import elman, gated_feedback, gru, linear, lstm, projection, reference
from evenflow.scan.choice import LINEARIZED, say
from evenflow.scan.cuda import elman as elman_cuda
from evenflow.scan.storage import HALF

ENGINES = ("auto", "torch", "reference")
ACTIVATED = (Elman, ScalarGated, SCRN, ComplexElman)  # cells that leave a choice of activation


def project(cell: Cell, x: Tensor, weights: Weights, engine: str = "auto") -> Tensor:
    """What `cell.project` gives, by compiled code where that is faster: a thin input makes torch's product slow."""
    device = x.device.type
    _same_dtype(cell, x, weights)
    plain = type(cell).project is Cell.project and x.dtype in (torch.float32, torch.float64)
    if engine != "auto" or not plain or device not in ("cpu", "cuda") or transformed():
        return cell.project(x, weights)
    if torch.is_autocast_enabled(device):
        return cell.project(x, weights)
    weight, bias = weights["weight_ih"], weights.get("bias")
    if device == "cpu":
        return linear.project(x, weight, bias)
    return projection.project(*map(_one_model, (x.flatten(0, 1), weight, bias))).view(*x.shape[:2], -1)


def scan(
    cell: Cell,
    a: Tensor,
    state: State,
    weights: Weights,
    batch_sizes: Sequence[int] | None = None,
    tap: Tensor | None = None,
    engine: str = "auto",
    storage: torch.dtype | None = None,
    known: State | None = None,
) -> tuple[Tensor, ...]:
    """Every state of `cell` over the steps of `a`; shapes and arguments as in `reference.scan`.

    Args:
        engine: ``"auto"``, the fastest there is; ``"torch"``, the fused scan in torch operations, without compiled
            code; ``"reference"``, the loop itself; ``"linearized"``, the fastest whose gradient has one of its own by
            what comes into it, weights and states held: the fused scan of an Elman cell, else the loop.
        storage: the dtype in which the states, and what else the way back needs of every step, are kept.
        known: every state, where they were found before; a fused scan that `regains` them does not run again.

    It runs in the dtype of its recurrent matrix, autocast or not: errors of half precision would accumulate.
    """
    dtype = weights["weight_hh"].dtype
    if storage is not None and dtype not in HALF and _precise(cell):  # all is kept in the weights' dtype
        states = scan(cell, a, state, weights, batch_sizes, tap, engine)
        return tuple(s.to(storage) for s in states)
    with nullcontext() if a.is_meta else torch.autocast(a.device.type, enabled=False):
        a, state = a.to(storage or dtype), tuple(s.to(dtype) for s in state)
        if engine == LINEARIZED and not (linearizes(cell, weights) and tap is None and storage is None):
            engine = "reference"
        if engine != "reference" and not a.is_meta:
            if (why := _loops(cell, dtype, tap)) is None:
                more = () if known is None or not regains(cell) else (known,)
                return fused(cell)(cell, a, state, weights, batch_sizes, tap, engine, *more)
            say("in its plain loop, many times slower than by a fused scan", why)
        states = reference.scan(cell, a.to(dtype), state, weights, batch_sizes, tap)
        return states if storage is None else tuple(s.to(storage) for s in states)


def _same_dtype(cell: Cell, x: Tensor, weights: Weights) -> None:
    """Refuse an input that torch's product would refuse, and say what to do."""
    if type(cell).project is not Cell.project or x.dtype == (weight := weights["weight_ih"]).dtype:
        return
    casts = not x.is_meta and torch.is_autocast_enabled(x.device.type)
    if not casts or torch.float64 in (x.dtype, weight.dtype):  # which autocast leaves as it is
        raise ValueError(f"input must be {weight.dtype} as the layer's weights are, got {x.dtype}: convert one of them")


def _precise(cell: Cell) -> bool:
    """Whether half precision is too coarse for the states of its activation: slopes are told from their differences."""
    return getattr(getattr(cell, "activation", None), "precise", False)


def _loops(cell: Cell, dtype: torch.dtype, tap: Tensor | None) -> str | None:
    """Why a recurrence has to run in the plain loop; None where a fused scan will do."""
    if fused(cell) is None:
        of, which = ("activation", cell.activation) if type(cell) in ACTIVATED else ("cell", cell)  # type: ignore[attr-defined]
        return f"there is none of the {of} {type(which).__name__}"
    if transformed():
        return "a fused scan has a gradient for a backward pass alone, none for torch.func and forward mode"
    if dtype in HALF and _precise(cell):
        return f"{cell.activation.key} runs in no fused scan with weights of {dtype}"  # type: ignore[attr-defined]
    # What reaches a context unit directly or by way of h is told apart in the loop; gated feedback has taps of its own.
    if tap is not None and isinstance(cell, SCRN | GatedFeedback):
        return f"there is none of {type(cell).__name__} with taps"
    return None


def fused(cell: Cell):  # type: ignore[no-untyped-def]
    """The fused scan of exactly this cell, or None. A subclass may mean another equation, so it gets none."""
    if type(cell) in ACTIVATED and type(cell.activation) in ACTIVATIONS.values():  # type: ignore[attr-defined]
        return _scrn if type(cell) is SCRN else _elman
    return FUSED.get(type(cell))


def linearizes(cell: Cell, weights: Weights) -> bool:
    """Whether the fused scan of this cell has a gradient of its gradient by what comes in."""
    return type(cell) is Elman and fused(cell) is not None and "activation" not in weights


def regains(cell: Cell) -> bool:
    """Whether the fused scan of this cell finds what it keeps of a step again from the states."""
    return fused(cell) in (_elman, _gru, _lstm)


def recordable(cell: Cell, steps: int, tapped: bool = False) -> bool:
    """Whether a scan on a GPU is a few kernels that depend on shapes alone. A long linear one looks at its powers."""
    linear = isinstance(cell, Elman) and cell.activation.key == "identity"
    loops = tapped and isinstance(cell, SCRN)  # see `scan`
    return fused(cell) is not None and compiled() and not loops and not (linear and steps > elman_cuda.STEPS_TO_BEGIN)


def _elman(
    cell: Elman | ComplexElman,
    a: Tensor,
    state: State,
    weights: Weights,
    batch_sizes: Sequence[int] | None,
    tap: Tensor | None,
    engine: str,
    known: State | None = None,
) -> tuple[Tensor, ...]:
    scalars = cell.scalars(weights) if isinstance(cell, ScalarGated) else (None, None)
    members = (a, weights["weight_hh"], state[0], *scalars, weights.get("activation"), tap)
    run = elman.scan if known is None else partial(elman.again, known[0].unsqueeze(0))
    states, _ = run(*map(_one_model, members), cell.activation.key, batch_sizes, engine)
    return (states.squeeze(0),)


def _scrn(
    cell: SCRN,
    a: Tensor,
    state: State,
    weights: Weights,
    batch_sizes: Sequence[int] | None,
    tap: Tensor | None,
    engine: str,
) -> tuple[Tensor, ...]:
    """Two recurrences one after the other, since the context does not see the other units."""
    (into_h, into_s), (h0, s0) = (v.tensor_split([-weights["rate"].shape[0]], -1) for v in (a, state[0]))
    none = (None,) * 4
    slow = map(_one_model, (into_s, torch.diag(weights["rate"]), s0))
    s = elman.scan(*slow, *none, "identity", batch_sizes, engine)[0].squeeze(0)
    into_h = into_h + s @ weights["weight_hs"].to(s.dtype).mT
    members = (into_h, weights["weight_hh"], h0, None, None, weights.get("activation"))
    h = elman.scan(*map(_one_model, members), None, cell.activation.key, batch_sizes, engine)[0].squeeze(0)
    return (torch.cat([h, s], -1),)


def _gru(
    cell: GRU,
    a: Tensor,
    state: State,
    weights: Weights,
    batch_sizes: Sequence[int] | None,
    tap: Tensor | None,
    engine: str,
    known: State | None = None,
) -> tuple[Tensor, ...]:
    weight = torch.cat([weights["weight_hh"], weights["weight_hh_n"]])
    members = (a, weight, weights.get("bias_hh_n"), state[0], tap)
    run = gru.scan if known is None else partial(gru.again, known[0].unsqueeze(0))
    states, _ = run(*map(_one_model, members), batch_sizes, engine)
    return (states.squeeze(0),)


def _lstm(
    cell: Cell,
    a: Tensor,
    state: State,
    weights: Weights,
    batch_sizes: Sequence[int] | None,
    tap: Tensor | None,
    engine: str,
    known: State | None = None,
) -> tuple[Tensor, ...]:
    truncated = isinstance(cell, LSTM1997) and cell.gradient == "truncated"
    members = (a, weights["weight_hh"], *state, weights.get("peephole"), tap)
    run = lstm.scan if known is None else partial(lstm.again, *(v.unsqueeze(0) for v in known))
    h, c, _ = run(*map(_one_model, members), truncated, batch_sizes, engine)
    return h.squeeze(0), c.squeeze(0)


def _gated_feedback(
    cell: GatedFeedback,
    a: Tensor,
    state: State,
    weights: Weights,
    batch_sizes: Sequence[int] | None,
    tap: Tensor | None,
    engine: str,
) -> tuple[Tensor, ...]:
    size, above = weights["weight_hh"].shape[-2], range(1, cell.layers)
    into, taps, factors = cell.columns(a, size)
    up = [weights[f"weight_ih_l{j}"] for j in above]
    members = (
        into,
        None if factors is None else factors.detach(),
        weights["weight_hh"],
        weights["weight_hh_gate"],
        weights.get("weight_hh_own"),
        torch.stack(up) if up else into.new_empty(0, into.shape[-1], size),
        torch.stack([weights[f"bias_l{j}"] for j in above]) if "bias_l1" in weights else None,
        torch.stack([weights[f"bias_hh_n_l{j}"] for j in (0, *above)]) if "bias_hh_n_l0" in weights else None,
        state[0],
        state[1] if len(state) > 1 else None,
        taps,
    )
    h, c, *_ = gated_feedback.scan(*map(_one_model, members), batch_sizes, engine)
    return (h.squeeze(0), c.squeeze(0)) if len(state) > 1 else (h.squeeze(0),)


def _one_model(value: Tensor | None) -> Tensor | None:
    # Taken off again by `squeeze`, whose gradient is a view; that of an index would be as many zeros, and a copy.
    return None if value is None else value.unsqueeze(0)


FUSED = {GRU: _gru, LSTM: _lstm, PeepholeLSTM: _lstm, LSTM1997: _lstm, GatedFeedback: _gated_feedback}
