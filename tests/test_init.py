"""Starting matrices: their law, their size, their seed."""

from __future__ import annotations

import pytest
import torch

from evenflow import init

EXACT = 1e-12
STARTS = [init.orthogonal, init.identity, init.glorot_normal, init.glorot_uniform, init.spectral_radius]
every = pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (7, 3), (3, 7)], ids=str)
def test_orthogonal(shape: tuple[int, int]) -> None:
    W = init.orthogonal(*shape, generator=seeded(), dtype=torch.float64)
    gram = W.mT @ W if shape[0] >= shape[1] else W @ W.mT
    assert W.shape == shape
    assert (gram - torch.eye(min(shape))).abs().max() < EXACT


def test_orthogonal_is_uniform() -> None:
    # Entries of a uniform draw have mean 0 and variance 1/n; both determinants come about equally often.
    draws = torch.stack([init.orthogonal(4, generator=seeded(seed), dtype=torch.float64) for seed in range(400)])
    assert draws.mean(0).abs().max() < 5 * 0.5 / 400**0.5
    assert (draws.square().mean(0) - 0.25).abs().max() < 0.08
    assert 0.4 < (torch.linalg.det(draws) > 0).double().mean() < 0.6


def test_identity() -> None:
    assert torch.equal(init.identity(3), torch.eye(3))
    assert torch.equal(init.identity(2, 4), torch.eye(2, 4))


def test_glorot() -> None:
    normal = init.glorot_normal(300, 100, generator=seeded())
    assert normal.std() == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    uniform = init.glorot_uniform(300, 100, generator=seeded())
    bound = (6 / 400) ** 0.5
    assert 0.99 * bound < uniform.abs().max() <= bound
    assert uniform.std() == pytest.approx(bound / 3**0.5, rel=0.02)


@pytest.mark.parametrize("radius", [0.8, 1.0, 1.2])
def test_spectral_radius(radius: float) -> None:
    W = init.spectral_radius(40, radius=radius, generator=seeded(), dtype=torch.float64)
    assert torch.linalg.eigvals(W).abs().max() == pytest.approx(radius, rel=1e-9)


@every
def test_one_seed_one_matrix_in_every_dtype(start: object) -> None:
    full = start(6, generator=seeded(3), dtype=torch.float64)  # type: ignore[operator]
    assert torch.equal(start(6, generator=seeded(3)), full.float())  # type: ignore[operator]
    assert start(6).dtype == torch.float32  # type: ignore[operator]


@every
@pytest.mark.parametrize("size", [0, -2, 1.5])
def test_bad_sizes(start: object, size: object) -> None:
    with pytest.raises(ValueError, match="rows must be a whole number of at least 1, got"):
        start(size)  # type: ignore[operator]


def test_bad_radius() -> None:
    with pytest.raises(ValueError, match="radius must be a number above 0, got -1"):
        init.spectral_radius(3, radius=-1)
    with pytest.raises(ValueError, match="needs a square matrix, got 3 x 4"):
        init.spectral_radius(3, 4)
