"""Images turned, sheared, stretched and moved a little at random."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

DRAWN = 65_537  # affine maps; a prime, so that the variants of an image have maps unlike those of the next
SEED = 3


def distorted(images: Tensor, numbers: Tensor, strength: float) -> Tensor:
    """Each image seen through an affine map that its number picks, ``y(p) = x(A p + t)``.

    ``A = I + s E`` and ``t = s e``, with the six numbers in E and e uniform between -1 and 1, and the image reaching
    from -1 to 1 each way: s = 0.1 turns by up to 6 degrees, stretches either way by up to a tenth, shears as much and
    moves by up to 1.4 of 28 pixels, all at once, so that a length may change by a fifth. Between pixels the value is
    interpolated; what comes in from outside is dark.

    Shapes:
        images ``(B, N, N)``; numbers ``(B,)`` int64, the same number for the same map on every machine and device.

    Reference: Simard et al. 2003, who turn, skew and scale training images too.
    """
    unmoved = torch.eye(2, 3, device=images.device, dtype=images.dtype)
    maps = unmoved + strength * _drawn(images.device)[numbers % DRAWN].to(images.dtype)
    grid = F.affine_grid(maps, [len(images), 1, *images.shape[1:]], align_corners=False)
    return F.grid_sample(images.unsqueeze(1), grid, align_corners=False).squeeze(1)


@lru_cache(maxsize=2)
def _drawn(device: torch.device) -> Tensor:
    # RandomState's stream is frozen for good.
    return torch.from_numpy(np.random.RandomState(SEED).uniform(-1, 1, (DRAWN, 2, 3)).astype(np.float32)).to(device)
