"""Rotations: the product written out, the permutations, the limits on layers."""

from __future__ import annotations

import pytest
import torch

from evenflow.maps import Rotations, make

EXACT = 1e-12


def test_value_is_the_product_written_out() -> None:
    map = Rotations(6, layers=3, seed=5)
    angles = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = torch.eye(6, dtype=torch.float64)
    for j in range(3):
        R = torch.eye(6, dtype=torch.float64)
        for i in range(3):
            c, s = angles[j, i].cos(), angles[j, i].sin()
            R[i, i], R[i, i + 3], R[i + 3, i], R[i + 3, i + 3] = c, -s, s, c
        Q = torch.eye(6, dtype=torch.float64)[map.permutations[j]]
        expected = expected @ R @ Q
    assert (map(angles) - expected).abs().max() < EXACT


def test_permutations_come_from_the_seed_and_are_saved() -> None:
    a, b, c = Rotations(16, seed=1), Rotations(16, seed=1), Rotations(16, seed=2)
    assert torch.equal(a.permutations, b.permutations)
    assert not torch.equal(a.permutations, c.permutations)
    c.load_state_dict(a.state_dict())
    assert torch.equal(a.permutations, c.permutations)
    for row in a.permutations:
        assert torch.equal(row.sort().values, torch.arange(16))
    assert not torch.equal(a.permutations[0], a.permutations[1])


def test_start_is_almost_a_permutation() -> None:
    map = Rotations(64)
    angles = map.start(torch.Generator().manual_seed(0))[0]
    assert -0.05 <= angles.min() < -0.045
    assert 0.045 < angles.max() <= 0.05
    assert map(angles).abs().max(1).values.min() > 0.9


@pytest.mark.parametrize(("n", "layers"), [(2, 2), (100, 14), (128, 14), (256, 16), (512, 18)])
def test_default_layers(n: int, layers: int) -> None:
    assert Rotations(n).layers == layers
    with pytest.raises(ValueError, match=f"layers must be from 1 to {layers} .* got {layers + 1}"):
        Rotations(n, layers=layers + 1)


@pytest.mark.parametrize("layers", [0, -2, 1.5])
def test_bad_layers(layers: object) -> None:
    with pytest.raises(ValueError, match=r"layers must be from 1 to 6 \(2⌈log2 8⌉\), got"):
        make("rotations", 8, layers=layers)


def test_odd_size() -> None:
    with pytest.raises(ValueError, match=r"rows \(a layer's hidden_size\) must be even, got 7"):
        Rotations(7)
