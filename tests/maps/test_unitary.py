"""Unitary maps: formulas, phases, the way back."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenflow.maps import ScaledUnitary, Unitary, UnitaryProduct

EXACT = 1e-10
HALF_THE_DIGITS = 1e-7  # a logarithm taken beside the angle π


def haar(n: int, seed: int) -> torch.Tensor:
    draw = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.complex128)
    return torch.linalg.qr(draw)[0]


@given(n=st.integers(1, 6), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_full_capacity(n: int, seed: int) -> None:
    W = haar(n, seed)
    for method in ("exponential", "cayley"):
        map = Unitary(n, method=method)
        assert (map(map.right_inverse(W)) - W).abs().max() < HALF_THE_DIGITS


@pytest.mark.parametrize("W", [haar(1, 0), haar(5, 1), -torch.eye(4).cdouble(), torch.diag(torch.tensor([1, -1, 1j]))])
def test_scaled_has_full_capacity(W: torch.Tensor) -> None:
    """With phases there is no matrix that Cayley's transform cannot make, whatever its eigenvalues."""
    map = ScaledUnitary(len(W))
    assert (map(*map.right_inverse(W.to(torch.complex128))) - W).abs().max() < HALF_THE_DIGITS


def test_scaled_is_the_formula_of_scurnn() -> None:
    map = ScaledUnitary(4)
    raw, theta = (r.double() for r in map.start(torch.Generator().manual_seed(0)))
    raw = raw + torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    A, I = map.core.skew(raw), torch.eye(4).cdouble()
    assert (A + A.mH).abs().max() < EXACT
    W = torch.linalg.inv(I + A) @ (I - A) @ torch.diag(torch.exp(1j * theta))
    assert (map(raw, theta) - W).abs().max() < EXACT


@pytest.mark.parametrize("diagonal", [[1, 1, 1], [-1, 1, 1], [-1, -1, -1], [1j, -1j, -1]], ids=str)
def test_logarithm_of_special_matrices(diagonal: list[complex]) -> None:
    W = torch.diag(torch.tensor(diagonal, dtype=torch.complex128))
    map = Unitary(3)
    assert (map(map.right_inverse(W)) - W).abs().max() < HALF_THE_DIGITS


def test_cayley_refuses_the_eigenvalue_minus_one() -> None:
    with pytest.raises(ValueError, match="cannot make a matrix with the eigenvalue -1"):
        Unitary(2, method="cayley").right_inverse(torch.diag(torch.tensor([-1.0, 1.0])).cdouble())
    with pytest.raises(ValueError, match="makes unitary matrices"):
        Unitary(2).right_inverse(2 * torch.eye(2).cdouble())


@pytest.mark.parametrize(("method", "reach"), [("exponential", math.pi), ("cayley", math.pi / 2)])
def test_starts_with_phases(method: str, reach: float) -> None:
    map = Unitary(100, method=method)
    W = map(*(r.double() for r in map.start(torch.Generator().manual_seed(0))))
    angles = W.diagonal().angle()
    assert (W - torch.diag(W.diagonal())).abs().max() < EXACT
    assert 0.9 * reach < angles.abs().max() <= reach


def test_haar_start_is_dense() -> None:
    map = Unitary(8, init="haar")
    assert (map(*map.start(torch.Generator().manual_seed(0))).abs() > 1e-3).all()


def test_arjovsky_product_written_out() -> None:
    n, map = 5, UnitaryProduct(5, seed=3)
    angles = torch.randn(3, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = torch.randn(4, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    I = torch.eye(n, dtype=torch.complex128)
    j = torch.arange(n, dtype=torch.float64)
    F = torch.exp(-2j * math.pi * j.outer(j) / n) / math.sqrt(n)
    D = [torch.diag(torch.exp(1j * angle)) for angle in angles]
    v = [torch.complex(parts[i], parts[i + 1]) for i in (0, 2)]
    R = [I - 2 * x.outer(x.conj()) / x.abs().square().sum() for x in v]
    expected = D[2] @ R[1] @ F.mH @ D[1] @ I[map.permutation] @ R[0] @ F @ D[0]
    assert (map(angles, parts) - expected).abs().max() < EXACT


def test_zero_reflection_is_the_identity_with_finite_gradient() -> None:
    map = UnitaryProduct(4)
    raw = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in map.raw_shapes]
    W = map(*raw)
    # F⁻¹ Π F: unitary, and each row of it a wave.
    assert (W.mH @ W - torch.eye(4)).abs().max() < EXACT
    for gradient in torch.autograd.grad(W.real.sum(), raw):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("option", ["method", "init"])
def test_bad_settings(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be one of"):
        Unitary(4, **{option: "other"})
