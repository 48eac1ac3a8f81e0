"""A linear recurrence in pieces that run in parallel: few steps of many rows instead of many steps of few rows.

``h_t = W h_{t-1} + a_t`` has no activation, so what a piece of c steps adds does not depend on where it starts:
``h_{t+c} = W^c h_t + (the same c steps from zero)``. All pieces run from zero at once, then the states between them
follow with W^c, then all pieces run once more from their true start. That is twice the work in about 3 √T steps instead
of T: it pays where a step costs more to begin than to do, in torch operations and most of all on a GPU.

W^c is computed by repeated squaring, and the states between the pieces from it, both in double precision: an error in
W^c would enter once per piece. Where powers of W grow the plain loop runs, in which numbers overflow only if the true
states do.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from evenflow.scan.engine import ScanInputs, ScanOutputs, StepGradients

# The norm of W^c over that of an orthogonal matrix, √H. A matrix whose powers stay below this loses less than a digit.
GROWTH = 10.0
Loop = Callable[[Tensor, Tensor, Tensor], Tensor]
# Multiplications in one step up to which pieces are chosen. On a CPU this is measured: at H = 128 and T = 10,000 a
# training pass in pieces takes 0.1 of the loop's time at one row, 0.3 at four, 0.8 at eight and 1.2 at twenty, on two
# threads; on one it is 0.5 at four and 1.2 at eight. On other devices it is counted: below this a step's
# multiplications take less than a microsecond, and its launch takes several.
CPU_STEP, DEVICE_STEP = 2**16, 2**24
LEAST_STEPS = 512


def pays(a: Tensor) -> bool:
    """Whether pieces are faster than the loop for a ``(M, T, B, H)``."""
    models, steps, batch, hidden = a.shape
    if steps < LEAST_STEPS or a.dtype not in (torch.float32, torch.float64):
        return False
    if a.is_cuda and torch.cuda.is_current_stream_capturing():  # `scan` reads a number, which a capture does not allow
        return False
    return 0 < models * batch * hidden**2 <= (CPU_STEP if a.device.type == "cpu" else DEVICE_STEP)


def forward(inputs: ScanInputs, pieces: int | None = None, loop: Loop | None = None) -> ScanOutputs | None:
    """The forward pass of a linear step in pieces, see `scan`; None where powers of W grow."""
    a = inputs.a
    states = scan(a, inputs.matrices[0], inputs.states[0], pieces, loop)
    if states is None:
        return None
    return ScanOutputs([states], a.new_empty(*a.shape[:-1], 0), a.new_empty(*a.shape[:-1], 0, dtype=torch.int8))


def backward(
    inputs: ScanInputs, grad: Tensor, want_tap: bool, pieces: int | None = None, loop: Loop | None = None
) -> StepGradients | None:
    """The backward pass of a linear step, ``D_t = grad_t + D_{t+1} W``: the same recurrence from the last step."""
    weight = inputs.matrices[0]
    reverse = scan(grad.flip(1), weight.mT.contiguous(), torch.zeros_like(inputs.states[0]), pieces, loop)
    if reverse is None:
        return None
    d_a = reverse.flip(1)
    return StepGradients(d_a, d_a[..., :0], [d_a[:, 0] @ weight], d_a.clone() if want_tap else None)


def scan(a: Tensor, weight: Tensor, h0: Tensor, pieces: int | None = None, loop: Loop | None = None) -> Tensor | None:
    """All states ``(M, T, B, H)`` of ``h_t = W h_{t-1} + a_t``, or None where powers of W grow.

    Args:
        pieces: how many; √T of them if not given.
        loop: gives all states of a, W and h0, step by step; torch operations if not given.

    Shapes:
        a: ``(M, T, B, H)``; weight: ``(M, H, H)``; h0: ``(M, B, H)``.
    """
    _, steps, batch, hidden = a.shape
    loop = loop or _loop
    each = steps // pieces if pieces else math.isqrt(steps)
    count = steps // each
    power = torch.linalg.matrix_power(weight.double(), each)
    if not bool((power.norm(dim=(1, 2)) <= GROWTH * math.sqrt(hidden)).all()):  # also where it is not finite
        return None
    # (M, c, pieces * B, H): step j of all pieces is contiguous.
    rows = a[:, : each * count].unflatten(1, (count, each)).transpose(1, 2).flatten(2, 3).contiguous()
    ends = loop(rows, weight, torch.zeros_like(rows[:, 0]))[:, -1].unflatten(1, (count, batch)).double()
    starts, transposed_power = [h0.double()], power.mT
    for end in ends.unbind(1):
        starts.append(torch.baddbmm(end, starts[-1], transposed_power))
    start = torch.stack(starts[:-1], 1).to(a.dtype).flatten(1, 2)
    states = loop(rows, weight, start).unflatten(2, (count, batch)).transpose(1, 2).flatten(1, 2)
    if each * count == steps:
        return states
    rest = loop(a[:, each * count :].contiguous(), weight, states[:, -1].contiguous())
    return torch.cat([states, rest], 1)


def _loop(a: Tensor, weight: Tensor, h: Tensor) -> Tensor:
    states, transposed = torch.empty_like(a, memory_format=torch.contiguous_format), weight.mT
    for row, out in zip(a.unbind(1), states.unbind(1), strict=True):
        h = torch.baddbmm(row, h, transposed, out=out)
    return states
