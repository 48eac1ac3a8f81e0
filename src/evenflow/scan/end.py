"""The last state of a linear recurrence in one product, without those between.

``h_t = U h_{t-1} + W x_t + b`` has no activation, so that its end is a sum over the inputs,

    ``h_T = U^T h_0 + Σ_t U^{T-t} (W x_t + b)``,

one product of all inputs with ``[U^{T-1} W, ..., U W, W]``. These come by doubling, ``U^{m+k} W = U^m (U^k W)``, in as
many products as T has binary digits. The recurrence multiplies all B rows of a batch by U in every step; this
multiplies the I columns of W, and b, and is the faster the fewer inputs there are to a row.

Powers of U and what they make are in double precision: an error in U^m is in every later one, and doubled by each
squaring.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

DOUBLE = 2  # times as long as a multiplication in single precision
LEAST_STEPS = 32
GAIN = 0.8  # of the recurrence's time, by count, below which it is done; counts are off by a fifth


def pays(steps: int, rows: int, inputs: int, units: int) -> bool:
    """Whether the multiplications are fewer than the recurrence's, with rows, columns and squarings counted in units².

    Measured on one core there and back, at 128 units, 1,000 steps and one input: 0.6 of the recurrence's time with 20
    rows, where this counts 0.6; 0.09 with 100 rows of 256 units over 784 steps.
    """
    if steps < LEAST_STEPS:
        return False
    columns = 2 * DOUBLE * (inputs + 1)
    squarings = 2 * DOUBLE * math.log2(steps) * units / steps
    return columns + squarings + rows * inputs / units < GAIN * rows


def end(x: Tensor, h0: Tensor | None, weight_ih: Tensor, bias: Tensor | None, weight_hh: Tensor) -> Tensor:
    """The state after the last step.

    Shapes:
        x ``(T, B, I)``; h0 ``(B, H)``, None for zero; weight_ih ``(H, I)``, bias ``(H)``, weight_hh ``(H, H)``; result
        ``(B, H)``.
    """
    steps, rows, inputs = x.shape
    U = weight_hh.double()
    enters = weight_ih if bias is None else torch.cat([weight_ih, bias.unsqueeze(1)], 1)
    passed = enters.double().unsqueeze(0)  # what becomes of an input after 0, 1, ... steps
    power = U
    while len(passed) < steps:
        passed = torch.cat([passed, power @ passed[: steps - len(passed)]])
        if len(passed) < steps:
            power = power @ power
    by_step = passed[..., :inputs].flip(0).transpose(1, 2).reshape(steps * inputs, -1).to(x.dtype)
    h = x.transpose(0, 1).reshape(rows, steps * inputs) @ by_step
    if bias is not None:
        h = h + passed[..., -1].sum(0).to(x.dtype)
    if h0 is not None:
        h = h + h0 @ torch.linalg.matrix_power(U, steps).mT.to(x.dtype)
    return h
