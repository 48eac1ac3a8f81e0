"""Cayley's transform: its formula, its signs, the matrices it cannot make."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow import init
from evenflow.maps import Cayley, residual

EXACT = 1e-10
# |WᵀW - I| in float32 however large A is: the inverse is taken in float64.
ORTHOGONAL = 1e-6


def test_value_is_the_formula() -> None:
    map = Cayley(5, signs=[1, -1, 1, -1, -1])
    raw = torch.randn(10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    A, I = map.skew(raw), torch.eye(5, dtype=torch.float64)
    D = torch.diag(torch.tensor([1.0, -1, 1, -1, -1], dtype=torch.float64))
    assert torch.allclose(map(raw), torch.linalg.inv(I + A) @ (I - A) @ D, atol=EXACT)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_orthogonal_for_large_entries(scale: float) -> None:
    map = Cayley(65)
    raw = scale * torch.randn(map.raw_shapes[0], generator=torch.Generator().manual_seed(0))
    assert residual(map(raw).double()) < ORTHOGONAL


@given(n=st.integers(1, 7), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_some_signs_reach_every_orthogonal_matrix(n: int, seed: int) -> None:
    W = init.orthogonal(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # Of all sign patterns at least one makes I + WD well conditioned; take the best.
    patterns = torch.cartesian_prod(*[torch.tensor([1.0, -1.0], dtype=torch.float64)] * n).reshape(-1, n)
    best = max(patterns, key=lambda d: torch.linalg.svdvals(torch.eye(n, dtype=torch.float64) + W * d)[-1].item())
    map = Cayley(n, signs=[int(sign) for sign in best])
    assert (map(map.right_inverse(W)) - W).abs().max() < EXACT


def test_eigenvalue_minus_one_needs_a_sign() -> None:
    W = torch.diag(torch.tensor([1.0, -1, 1], dtype=torch.float64))
    with pytest.raises(ValueError, match="Cayley with 0 minus signs cannot make this matrix"):
        Cayley(3).right_inverse(W)
    map = Cayley(3, signs=[1, -1, 1])
    assert torch.equal(map(map.right_inverse(W)), W)


def test_determinant_follows_the_signs() -> None:
    for signs, determinant in ((0, 1), (1, -1), (2, 1), ("half", 1)):
        map = Cayley(4, signs=signs)
        assert torch.linalg.det(map(*map.start())).round() == determinant


@pytest.mark.parametrize(
    ("signs", "sentence"),
    [
        (5, "signs must be from 0 to 4 minus ones, got 5"),
        (-1, "signs must be from 0 to 4 minus ones, got -1"),
        ("third", "signs must be a number of minus ones, 'half' or 4 signs, got 'third'"),
        ([1, -1], "signs must be 4 numbers, each 1 or -1"),
        ([1, -1, 0, 1], "signs must be 4 numbers, each 1 or -1"),
    ],
    ids=["too-many", "negative", "word", "too-few", "zero"],
)
def test_bad_settings(signs: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Cayley(4, signs=signs)  # type: ignore[arg-type]
