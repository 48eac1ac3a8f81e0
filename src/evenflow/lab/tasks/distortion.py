"""Images rotated, sheared, stretched, moved and bent a little at random."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

MAPS = 65_537  # affine maps drawn; a prime, so that consecutive images do not share their maps
FIELDS = 16_411  # fields drawn; another prime, so that a map is combined with a different field each time
WAVES = 8  # cosines of a field in each direction; a ninth would have 0.002 of the height of the first
SMOOTH = 1 / 7  # width of the Gaussian that smooths a field, as a share of the side: 4 of 28 pixels
MAP_SEED, FIELD_SEED = 3, 4


def distorted(images: Tensor, numbers: Tensor, strength: float, bend: float = 0.0) -> Tensor:
    """Distort each image by an affine map and a smooth field chosen by its number, ``y(p) = x(A p + t + b d(p))``.

    ``A = I + s E`` and ``t = s e`` with the six numbers in E and e uniform in [-1, 1], and image coordinates from -1 to
    1. s = 0.1 rotates by up to 6 degrees, stretches and shears by up to a tenth, and moves by up to 1.4 of 28 pixels,
    all at once. ``d`` is white noise smoothed by a Gaussian of 4 of 28 pixels, with a mean variance of 1: b = 0.05
    moves strokes by 0.7 of 28 pixels, each in its own direction. Values between pixels are interpolated; pixels from
    outside are dark.

    Shapes:
        images ``(B, N, N)``; numbers ``(B,)`` int64. The same number gives the same map on every machine and device.

    Args:
        strength: s; 0 for no affine map.
        bend: b; 0 for no field. Default: 0.

    Reference: Simard et al. 2003, whose fields have about b = 0.1.
    """
    identity = torch.eye(2, 3, device=images.device, dtype=images.dtype)
    maps = identity + strength * _maps(images.device)[numbers % MAPS].to(images.dtype)
    grid = F.affine_grid(maps, [len(images), 1, *images.shape[1:]], align_corners=False)
    if bend:
        heights = _heights(images.device)[numbers % FIELDS].to(images.dtype)
        waves = _waves(images.shape[-1], images.device).to(images.dtype)
        grid = grid + bend * (waves @ heights @ waves.T).permute(0, 2, 3, 1)
    return F.grid_sample(images.unsqueeze(1), grid, align_corners=False).squeeze(1)


@lru_cache(maxsize=2)
def _maps(device: torch.device) -> Tensor:
    # numpy has frozen the stream of RandomState: the maps are the same on every machine.
    return torch.from_numpy(np.random.RandomState(MAP_SEED).uniform(-1, 1, (MAPS, 2, 3)).astype(np.float32)).to(device)


@lru_cache(maxsize=2)
def _heights(device: torch.device) -> Tensor:
    """The height of each cosine of a field, across and down."""
    drawn = np.random.RandomState(FIELD_SEED).standard_normal((FIELDS, 2, WAVES, WAVES))
    return torch.from_numpy(drawn.astype(np.float32)).to(device)


@lru_cache(maxsize=2)
def _waves(size: int, device: torch.device) -> Tensor:
    """The cosines ``(N, 8)`` that white noise consists of, each scaled as the Gaussian scales it."""
    turns = math.pi * torch.arange(WAVES, dtype=torch.float64)
    waves = torch.cos((torch.arange(size).unsqueeze(1) + 0.5) / size * turns) * torch.exp(-((SMOOTH * turns) ** 2) / 2)
    waves[:, 1:] *= math.sqrt(2)  # gives them the norm of the first, which is constant
    return (waves / waves.square().mean(0).sum().sqrt()).float().to(device)
