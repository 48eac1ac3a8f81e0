"""Images turned, sheared, stretched, moved and bent a little at random."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

DRAWN = 65_537  # affine maps; a prime, so that the variants of an image have maps unlike those of the next
BENDS = 16_411  # fields; another prime, so that a map meets another field each time it comes back
WAVES = 8  # of a field each way; a ninth would have 0.002 of the first one's height
SMOOTH = 1 / 7  # of an image's side, how far a field is alike: 4 of 28 pixels
SEED, BEND_SEED = 3, 4


def distorted(images: Tensor, numbers: Tensor, strength: float, bend: float = 0.0) -> Tensor:
    """Each image seen through an affine map and a smooth field that its number picks, ``y(p) = x(A p + t + b d(p))``.

    ``A = I + s E`` and ``t = s e``, with the six numbers in E and e uniform between -1 and 1, and the image reaching
    from -1 to 1 each way: s = 0.1 turns by up to 6 degrees, stretches either way by up to a tenth, shears as much and
    moves by up to 1.4 of 28 pixels, all at once, so that a length may change by a fifth. ``d`` is white noise behind a
    Gaussian of 4 of 28 pixels, with a variance of 1 on average: b = 0.05 moves strokes by 0.7 of 28 pixels, each in
    its own direction. Between pixels the value is interpolated; what comes in from outside is dark.

    Shapes:
        images ``(B, N, N)``; numbers ``(B,)`` int64, the same number for the same map on every machine and device.

    Args:
        strength: s, 0 for no affine map.
        bend: b, 0 for no field.

    Reference: Simard et al. 2003, whose fields have about b = 0.1.
    """
    unmoved = torch.eye(2, 3, device=images.device, dtype=images.dtype)
    maps = unmoved + strength * _drawn(images.device)[numbers % DRAWN].to(images.dtype)
    grid = F.affine_grid(maps, [len(images), 1, *images.shape[1:]], align_corners=False)
    if bend:
        heights = _heights(images.device)[numbers % BENDS].to(images.dtype)
        waves = _waves(images.shape[-1], images.device).to(images.dtype)
        grid = grid + bend * (waves @ heights @ waves.T).permute(0, 2, 3, 1)
    return F.grid_sample(images.unsqueeze(1), grid, align_corners=False).squeeze(1)


@lru_cache(maxsize=2)
def _drawn(device: torch.device) -> Tensor:
    # RandomState's stream is frozen for good.
    return torch.from_numpy(np.random.RandomState(SEED).uniform(-1, 1, (DRAWN, 2, 3)).astype(np.float32)).to(device)


@lru_cache(maxsize=2)
def _heights(device: torch.device) -> Tensor:
    """How high each wave of a field stands, across and down."""
    drawn = np.random.RandomState(BEND_SEED).standard_normal((BENDS, 2, WAVES, WAVES))
    return torch.from_numpy(drawn.astype(np.float32)).to(device)


@lru_cache(maxsize=2)
def _waves(size: int, device: torch.device) -> Tensor:
    """The cosines ``(N, 8)`` that white noise is made of, each as high as a Gaussian leaves it."""
    turns = math.pi * torch.arange(WAVES, dtype=torch.float64)
    waves = torch.cos((torch.arange(size).unsqueeze(1) + 0.5) / size * turns) * torch.exp(-((SMOOTH * turns) ** 2) / 2)
    waves[:, 1:] *= math.sqrt(2)  # as long as the first, which is constant
    return (waves / waves.square().mean(0).sum().sqrt()).float().to(device)
