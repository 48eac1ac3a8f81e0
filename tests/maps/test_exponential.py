"""The exponential map: values against torch's, gradients where they are delicate, the way back."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenflow import init
from evenflow.maps import Exponential

# Two float64 computations of an exponential; the squarings of ours add some 1e-14.
EXACT = 1e-12
# A float32 exponential against the float64 one, for angles up to π.
SINGLE = 2e-6
# A logarithm taken beside the angle π keeps half of the digits.
HALF_THE_DIGITS = 1e-7

methods = pytest.mark.parametrize("method", ["squaring", "eigen"])


def skew(n: int, scale: float, seed: int = 0) -> Tensor:
    draw = torch.randn(n * (n - 1) // 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return scale * draw


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-3, 0.3, 3.0, 300.0])
@methods
def test_value_is_the_exponential(method: str, scale: float) -> None:
    map = Exponential(9, method=method)
    raw = skew(9, scale)
    expected = torch.linalg.matrix_exp(map.skew(raw))
    # The argument's own rounding grows with the angles.
    assert (map(raw) - expected).abs().max() < EXACT * (1 + scale)


def test_single_precision_value() -> None:
    map = Exponential(64)
    raw = map.start(torch.Generator().manual_seed(0))[0]
    assert (map(raw) - torch.linalg.matrix_exp(map.skew(raw.double()))).abs().max() < SINGLE


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param([0.0] * 6, id="zero"),
        pytest.param([1.0, 0, 0, 0, 0, 1.0], id="twice-the-same-angle"),
        pytest.param([1.0, 0, 0, 0, 0, 0], id="eigenvalue-zero-twice"),
        pytest.param([math.pi, 0, 0, 0, 0, math.pi], id="half-turns"),
        pytest.param([2 * math.pi, 0, 0, 0, 0, 0.5], id="whole-turn"),
    ],
)
@methods
def test_gradient_at_equal_eigenvalues(method: str, raw: list[float]) -> None:
    numbers = torch.tensor(raw, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(Exponential(4, method=method), numbers)


@methods
def test_plumbley_is_its_formula(method: str) -> None:
    map = Exponential(5, gradient="plumbley", method=method)
    raw = skew(5, 1.0).requires_grad_()
    W = map(raw)
    G = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rule = (G @ W.mT - W @ G.mT).detach()
    i, j = torch.triu_indices(5, 5, 1)
    assert torch.allclose(torch.autograd.grad(W, raw, G)[0], rule[i, j], atol=EXACT)


def test_plumbley_is_exact_at_zero_alone() -> None:
    exact, rule = Exponential(5), Exponential(5, gradient="plumbley")
    G = torch.randn(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for raw, same in ((torch.zeros(10, dtype=torch.float64), True), (skew(5, 1.0), False)):
        raw.requires_grad_()
        a, b = (torch.autograd.grad(map(raw), raw, G)[0] for map in (exact, rule))
        assert torch.allclose(a, b, atol=EXACT) == same


def test_plumbley_has_no_second_gradient() -> None:
    raw = skew(3, 1.0).requires_grad_()
    W = Exponential(3, gradient="plumbley")(raw)
    with pytest.raises(ValueError, match="no gradient of its own"):
        torch.autograd.grad(W.sum(), raw, create_graph=True)


@given(n=st.integers(1, 8), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_every_rotation_has_a_logarithm(n: int, seed: int) -> None:
    W = init.orthogonal(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    W[0] *= torch.linalg.det(W).sign()
    map = Exponential(n)
    assert (map(map.right_inverse(W)) - W).abs().max() < HALF_THE_DIGITS


@pytest.mark.parametrize(
    "W",
    [
        pytest.param(torch.eye(4), id="identity"),
        pytest.param(torch.diag(torch.tensor([-1.0, -1, 1, 1])), id="half-turn"),
        pytest.param(-torch.eye(6), id="minus-identity"),
        pytest.param(torch.eye(5)[[1, 2, 3, 4, 0]], id="cycle-of-five"),
        pytest.param(torch.eye(4)[[1, 0, 3, 2]], id="two-swaps"),
    ],
)
def test_logarithm_of_special_rotations(W: Tensor) -> None:
    map = Exponential(len(W))
    W = W.double()
    raw = map.right_inverse(W)
    assert isinstance(raw, Tensor)
    assert (map(raw) - W).abs().max() < HALF_THE_DIGITS
    assert torch.linalg.matrix_norm(map.skew(raw), 2) <= math.pi + HALF_THE_DIGITS


def test_start_angles() -> None:
    for name, low, high in (("henaff", -math.pi, math.pi), ("cayley", 0, math.tan(math.pi / 4))):
        map = Exponential(201, init=name)
        B = map.skew(map.start(torch.Generator().manual_seed(0))[0])
        angles = B.diagonal(1)[::2]
        assert B.count_nonzero() == 200
        assert low < angles.min() < low + 0.2 < high - 0.2 < angles.max() < high


def test_whatever_is_not_a_rotation_is_refused() -> None:
    map = Exponential(3)
    with pytest.raises(ValueError, match="determinant -1"):
        map.right_inverse(torch.diag(torch.tensor([1.0, 1, -1])))
    with pytest.raises(ValueError, match="makes orthogonal matrices, got one with"):
        map.right_inverse(2 * torch.eye(3))


def test_not_a_number_in_not_a_number_out() -> None:
    assert Exponential(3)(torch.tensor([math.nan, 0, 0])).isnan().any()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"gradient": "approximate"}, "gradient must be one of exact, plumbley, got 'approximate'"),
        ({"method": "pade"}, "method must be one of squaring, eigen, got 'pade'"),
        ({"init": "zero"}, "init must be one of henaff, cayley, haar, identity, got 'zero'"),
    ],
    ids=["gradient", "method", "init"],
)
def test_bad_settings(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Exponential(4, **options)
