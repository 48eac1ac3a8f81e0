"""The last state of a linear recurrence in one product, without the states before it.

``h_t = U h_{t-1} + W x_t + b`` has no activation, so its last state is a sum over the inputs,

    ``h_T = U^T h_0 + Σ_t U^{T-t} (W x_t + b)``,

one product of all inputs with ``[U^{T-1} W, ..., U W, W]``. These matrices are computed by doubling, ``U^{m+k} W = U^m
(U^k W)``, in as many products as T has binary digits. The recurrence multiplies all B rows of a batch by U in every
step. Here only the I columns of W, and b, are multiplied by powers of U, which is faster if I is small.

Powers of U and their products are in double precision: each squaring doubles the error of a power.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

DOUBLE = 2  # times as long as a multiplication in single precision
LEAST_STEPS = 32
GAIN = 0.8  # of the recurrence's time, by count, below which it is done; counts are a fifth to a third too high


def pays(steps: int, rows: int, inputs: int, units: int) -> bool:
    """Return True if `final_state` takes fewer multiplications than the recurrence, both in multiples of units².

    Measured, forward and backward, with one input (benchmarks/last_state.py): 0.54 of the recurrence's time at 128
    units, 20 rows and 1,000 steps, where this counts 0.66; 0.14 at 256 units, 100 rows and 784 steps, where it counts
    0.21.
    """
    if steps < LEAST_STEPS:
        return False
    columns = 2 * DOUBLE * (inputs + 1)
    squarings = 2 * DOUBLE * math.log2(steps) * units / steps
    return columns + squarings + rows * inputs / units < GAIN * rows


def final_state(
    x: Tensor, h0: Tensor | None, weight_ih: Tensor, bias: Tensor | None, weight_hh: Tensor
) -> Tensor | None:
    """The state after the last step; None where powers of U overflow the precision of x.

    There the recurrence itself may still be finite, if what grows is multiplied by zeros.

    Shapes:
        x ``(T, B, I)``; h0 ``(B, H)``, None for zero; weight_ih ``(H, I)``, bias ``(H)``, weight_hh ``(H, H)``; result
        ``(B, H)``.
    """
    steps, rows, inputs = x.shape
    units, columns = len(weight_hh), inputs + (bias is not None)
    extended = weight_ih if bias is None else torch.cat([weight_ih, bias.unsqueeze(1)], 1)
    effects = extended.double()  # (H, n columns): the effect of an input after 0, 1, ..., n - 1 steps
    powers = [weight_hh.double()]
    for done in (2**n for n in range((steps - 1).bit_length())):
        if done > 1:
            powers.append(powers[-1] @ powers[-1])
        effects = torch.cat([effects, powers[-1] @ effects[:, : (steps - done) * columns]], 1)
    by_age = effects.view(units, steps, columns)
    by_step = by_age[..., :inputs].flip(1).reshape(units, steps * inputs).to(x.dtype)
    if not (by_step.isfinite().all() and powers[-1].isfinite().all()):
        return None
    h = torch.nn.functional.linear(x.transpose(0, 1).reshape(rows, steps * inputs), by_step)
    if bias is not None:
        h = h + by_age[..., -1].sum(1).to(x.dtype)
    if h0 is not None:
        h = h + _after_steps(h0.double(), powers, steps).to(x.dtype)
    return h


def _after_steps(h: Tensor, powers: list[Tensor], steps: int) -> Tensor:
    """``U^T h`` for every row of h, from U, U², U⁴, ...: the largest power first."""
    for n in reversed(range(len(powers))):
        times, steps = divmod(steps, 2**n)
        for _ in range(times):
            h = h @ powers[n].mT
    return h
