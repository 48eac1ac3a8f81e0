"""Reflections: the compact form against one at a time, zero vectors, Theorem 1."""

from __future__ import annotations

import pytest
import sequential_reflections
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenflow import init
from evenflow.maps import Householder, residual

# Two float64 ways to one product.
EXACT = 1e-10
ORTHOGONAL = 1e-6  # |WᵀW - I| in float32
SHAPES = [(1, 0), (1, 1), (2, 1), (5, 0), (5, 2), (5, 5), (16, 7), (33, 33)]
shapes = pytest.mark.parametrize(("n", "m"), SHAPES, ids=[f"{m}-of-{n}" for n, m in SHAPES])


def drawn(n: int, m: int, seed: int = 0) -> Tensor:
    map = Householder(n, reflectors=m)
    return torch.randn(map.raw_shapes[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@shapes
def test_compact_form_equals_one_at_a_time(n: int, m: int) -> None:
    map, raw = Householder(n, reflectors=m), drawn(n, m).requires_grad_()
    us = sequential_reflections.split(raw.detach(), m, n)
    expected, before = sequential_reflections.product(torch.eye(n, dtype=torch.float64), us)
    W = map(raw)
    assert (W - expected).abs().max() < EXACT
    if m:
        G = torch.randn(n, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        _, dus = sequential_reflections.product_slope(before, us, G)
        assert (torch.autograd.grad(W, raw, G)[0] - torch.cat(dus)).abs().max() < EXACT * n


@shapes
def test_product_equals_one_at_a_time(n: int, m: int) -> None:
    raw = drawn(n, m)
    h = torch.randn(3, n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected, _ = sequential_reflections.product(h.mT, sequential_reflections.split(raw, m, n))
    assert (Householder(n, reflectors=m).product(h, raw) - expected.mT).abs().max() < EXACT


def test_reference_gradient_is_torchs() -> None:
    h = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    u = torch.randn(3, dtype=torch.float64, requires_grad=True)
    g = torch.randn(5, 2, dtype=torch.float64)
    expected = torch.autograd.grad(sequential_reflections.reflect(h, u), (h, u), g)
    for a, b in zip(sequential_reflections.reflect_slope(h.detach(), u.detach(), g), expected, strict=True):
        assert torch.allclose(a, b, atol=EXACT)


def test_zero_vector_is_the_identity_with_gradient_zero() -> None:
    map = Householder(5, reflectors=3)
    raw = drawn(5, 3)
    raw[5:9] = 0
    raw.requires_grad_()
    W = map(raw)
    us = sequential_reflections.split(raw.detach(), 3, 5)
    assert (
        W - sequential_reflections.product(torch.eye(5, dtype=torch.float64), [us[0], us[2]])[0]
    ).abs().max() < EXACT
    gradient = torch.autograd.grad(W, raw, torch.ones(5, 5, dtype=torch.float64))[0]
    assert gradient.isfinite().all()
    assert (gradient[5:9] == 0).all()
    assert gradient[:5].abs().min() > 0
    assert torch.equal(map(torch.zeros(12)), torch.eye(5))


@pytest.mark.parametrize("scale", [1e-18, 1e-6, 1e6])
def test_length_does_not_count(scale: float) -> None:
    map = Householder(64)
    raw = map.start(torch.Generator().manual_seed(0))[0]
    W = map(scale * raw)
    assert residual(W.double()) < ORTHOGONAL
    assert (W - map(raw)).abs().max() < 10 * ORTHOGONAL


def test_gradient_is_at_a_right_angle_to_each_vector() -> None:
    raw = drawn(6, 4).requires_grad_()
    G = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradient = torch.autograd.grad(Householder(6, reflectors=4)(raw), raw, G)[0]
    for u, du in zip(*(sequential_reflections.split(x.detach(), 4, 6) for x in (raw, gradient)), strict=True):
        assert abs(u @ du) < EXACT


@given(n=st.integers(1, 9), seed=st.integers(0, 10_000), flip=st.booleans())
@settings(max_examples=60, deadline=None)
def test_theorem_1_every_orthogonal_matrix(n: int, seed: int, flip: bool) -> None:
    W = init.orthogonal(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    W[0] *= torch.linalg.det(W).sign() * (-1 if flip else 1)
    map = Householder(n)
    assert torch.linalg.det(W).round() == (-1 if flip else 1)
    assert (map(map.right_inverse(W)) - W).abs().max() < EXACT


@pytest.mark.parametrize(
    "W",
    [torch.eye(4), -torch.eye(4), torch.eye(4)[[3, 0, 2, 1]], torch.diag(torch.tensor([1.0, 1, 1, -1]))],
    ids=["identity", "minus-identity", "permutation", "one-sign"],
)
def test_theorem_1_special_matrices(W: Tensor) -> None:
    map = Householder(4)
    assert (map(map.right_inverse(W.double())) - W.double()).abs().max() < EXACT


def test_too_few_reflectors_for_the_matrix() -> None:
    W = init.orthogonal(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(ValueError, match="Householder with 2 reflectors cannot make this matrix; 6 can"):
        Householder(6, reflectors=2).right_inverse(W)
    with pytest.raises(ValueError, match="makes orthogonal matrices, got one with"):
        Householder(6).right_inverse(2 * W)


def test_start_has_length_one() -> None:
    map = Householder(32, reflectors=32)
    lengths = map.vectors(map.start(torch.Generator().manual_seed(0))[0]).norm(dim=1)
    assert torch.allclose(lengths, torch.ones(32), atol=1e-5)


@pytest.mark.parametrize("reflectors", [-1, 5, 2.0], ids=["negative", "more-than-units", "not-whole"])
def test_bad_settings(reflectors: object) -> None:
    with pytest.raises(ValueError, match="reflectors must be from 0 to 4, the size of the matrix, got"):
        Householder(4, reflectors=reflectors)  # type: ignore[arg-type]
