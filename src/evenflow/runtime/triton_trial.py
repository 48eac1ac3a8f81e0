"""One small Triton kernel, which `triton_kernels` runs to find out whether Triton works on a machine."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]


@triton.jit
def _cosines(angles, out, N: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.arange(0, N)
    tl.store(out + i, tl.cos(tl.load(angles + i).to(tl.float64)))  # double precision calls CUDA's library of functions


def run(device: torch.device) -> None:
    """Compile and run a kernel on `device`; raises what Triton raises."""
    angles = torch.zeros(2, device=device)
    with torch.cuda.device(device):
        _cosines[(1,)](angles, torch.empty_like(angles), N=2)
