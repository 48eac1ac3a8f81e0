"""The one-kernel rotations against the layer-by-layer ones, on a GPU or, with TRITON_INTERPRET=1, without."""

from __future__ import annotations

import os

import pytest
import torch

from evenflow.maps import Rotations, residual

pytest.importorskip("triton", reason="the kernel is written in triton, which comes with torch for CUDA")
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
if not torch.cuda.is_available() and not interpreted:
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from evenflow.maps import rotations_cuda  # noqa: E402

DEVICE = "cpu" if interpreted else "cuda"
VALUE = {torch.float32: 1e-6, torch.float64: 1e-12}
GRADIENT = {torch.float32: 2e-4, torch.float64: 1e-10}  # sums over n columns, after k layers turned back


@pytest.mark.parametrize("dtype", VALUE, ids=str)
@pytest.mark.parametrize("lead", [(), (2, 3)], ids=["one", "models"])
@pytest.mark.parametrize(("n", "layers"), [(2, 1), (2, 2), (6, 3), (20, None), (64, None)])
def test_kernel_equals_layer_by_layer(n: int, layers: int | None, lead: tuple[int, ...], dtype: torch.dtype) -> None:
    map = Rotations(n, layers=layers, seed=3).to(DEVICE)
    source = torch.Generator().manual_seed(0)
    angles = torch.randn(*lead, *map.raw_shapes[0], generator=source, dtype=torch.float64).to(DEVICE, dtype)
    pull = torch.randn(*lead, n, n, generator=source, dtype=torch.float64).to(DEVICE, dtype)
    W = rotations_cuda.forward(angles, map.permutations)
    expected = map.layered_forward(angles)
    assert (W - expected).abs().max() < VALUE[dtype]
    assert residual(W.double()).max() < VALUE[dtype]
    got = rotations_cuda.vjp(pull, W, angles, map.permutations)
    assert (got - map.layered_vjp(pull, W, angles)).abs().max() < GRADIENT[dtype]
