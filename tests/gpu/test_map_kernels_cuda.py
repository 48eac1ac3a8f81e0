"""Reflections and thin projections in kernels of their own give what products of matrices give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evenflow.maps import SVD, Householder, residual
from evenflow.scan import projection

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
pytest.importorskip("triton")

CLOSE = {"atol": 1e-11, "rtol": 1e-9}  # float64
SINGLE = 2e-6  # of ‖expected‖: the kernels round once, from float64
REFLECTED = [(5, 3, 2), (8, 8, 8), (33, 1, 33), (128, 16, 16), (128, 128, 5), (200, 16, 9), (512, 16, 16), (1000, 7, 3)]


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to("cuda", dtype)


@pytest.mark.parametrize("lead", [(), (3,)], ids=["one", "three models"])
@pytest.mark.parametrize(("n", "m", "m2"), REFLECTED)
def test_reflections(n: int, m: int, m2: int, lead: tuple[int, ...]) -> None:
    map = Householder(n, reflectors=m).cuda()
    raw = draw(*lead, *map.raw_shapes[0])
    raw[..., : n // 2] = 0  # half of the first vector, or for m = 1 and small n all of it
    W, kept = map.blocked_forward(raw)
    G = draw(*W.shape, seed=1)
    found = map.evaluate(raw)[0]
    torch.testing.assert_close(found, W, **CLOSE)
    torch.testing.assert_close(map.vjp(G, found, raw)[0], map.blocked_vjp(G, *kept), **CLOSE)
    single, _ = map.evaluate(raw.float())
    assert (single - W).norm() < SINGLE * W.norm()
    assert residual(single.double()).max() < SINGLE


@pytest.mark.parametrize("lead", [(), (3,)], ids=["one", "three models"])
@pytest.mark.parametrize(("n", "m1", "m2"), REFLECTED)
def test_reflections_of_two_sides(n: int, m1: int, m2: int, lead: tuple[int, ...]) -> None:
    map = SVD(n, reflectors=(m1, m2), margin=None).cuda()
    raw = [draw(*lead, *shape, seed=seed) for seed, shape in enumerate(map.raw_shapes)]
    raw[2][..., 0] = 0  # a singular value that nothing can be divided by
    W, kept = map.blocked_forward(*raw)
    G = draw(*W.shape, seed=7)
    found, kept_here = map.evaluate(*raw)
    torch.testing.assert_close(found, W, **CLOSE)
    for one, other in zip(map.vjp(G, found, *kept_here), map.blocked_vjp(G, *kept), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_a_zero_vector_reflects_nothing_and_has_no_gradient() -> None:
    map = Householder(16, reflectors=2).cuda()
    raw = torch.zeros(map.raw_shapes[0], device="cuda")
    W, kept = map.evaluate(raw)
    assert torch.equal(W, torch.eye(16, device="cuda"))
    assert torch.equal(map.vjp(torch.ones_like(W), W, *kept)[0], torch.zeros_like(raw))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(
    ("models", "rows", "inputs", "wide"),
    [(1, 39200, 2, 128), (1, 1, 1, 1), (2, 129, 16, 130), (3, 1000, 9, 384), (1, 5000, 3, 1000)],
)
def test_thin_projections(
    models: int, rows: int, inputs: int, wide: int, biased: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = draw(models, rows, inputs), draw(models, wide, inputs, seed=1), draw(models, wide, seed=2)
    d = draw(models, rows, wide, seed=3)
    short = [v.to(dtype) for v in (x, weight, bias, d)]
    assert projection._thin(short[0]) is not None
    out = projection._forward(short[0], short[1], short[2] if biased else None)
    slopes = [projection._backward(short[3], short[0], short[1], biased, True) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*slopes, strict=True))
    monkeypatch.setattr(projection, "_thin", lambda *given: None)
    expected = [projection._forward(x, weight, bias if biased else None)]
    expected += projection._backward(d, x, weight, biased, True)
    tight = 1e-12 if dtype == torch.float64 else 1e-6
    for one, other in zip([out, *slopes[0]], expected, strict=True):
        assert (one - other).norm() <= tight * other.norm()
