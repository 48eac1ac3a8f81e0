"""What the papers say of the matrices of `Schur`, `Antisymmetric` and `SymmetricSkew`."""

from __future__ import annotations

import pytest
import torch

from evenflow.maps import make, residual

N = 8


def drawn(name: str, **options: float) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    torch.manual_seed(0)
    map = make(name, N, **options)
    return map, [torch.randn(*shape, dtype=torch.float64) for shape in map.raw_shapes]


def test_schur_has_the_eigenvalues_of_its_planes_whatever_stands_above_them() -> None:
    map, (b, theta, g, t) = drawn("schur")
    g = 0.5 + g.abs()
    wanted = torch.cat([torch.polar(g, theta), torch.polar(g, -theta)])
    found = torch.linalg.eigvals(map(b, theta, g, t))
    distance = (found.unsqueeze(0) - wanted.unsqueeze(1)).abs()
    assert distance.amin(0).max() < 1e-8
    assert distance.amin(1).max() < 1e-8


def test_schur_is_orthogonal_where_nothing_stands_above_the_planes() -> None:
    map, (b, theta, g, t) = drawn("schur")
    assert residual(map(b, theta, torch.ones_like(g), torch.zeros_like(t))) < 1e-12
    assert residual(map(b, theta, torch.ones_like(g), t)) > 0.1


@pytest.mark.parametrize("gamma", [0.0, 0.3])
def test_antisymmetric_has_eigenvalues_on_a_line(gamma: float) -> None:
    map, raw = drawn("antisymmetric", gamma=gamma)
    W = map(*raw)
    assert (torch.linalg.eigvals(W).real + gamma).abs().max() < 1e-12
    i, j = torch.triu_indices(N, N, 1)
    assert torch.equal(W[i, j], raw[0])


def test_symmetric_skew_is_the_papers_sum() -> None:
    map, (M,) = drawn("symmetric_skew", beta=0.7, gamma=0.2)
    wanted = 0.3 * (M + M.T) + 0.7 * (M - M.T) - 0.2 * torch.eye(N, dtype=torch.float64)
    torch.testing.assert_close(map(M), wanted, atol=1e-12, rtol=0)
