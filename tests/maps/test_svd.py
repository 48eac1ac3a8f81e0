"""The two SVD maps: margins, Theorems 2 to 4, learning rates."""

from __future__ import annotations

import pytest
import sequential_reflections
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evenflow import init
from evenflow.maps import SVD, Factorized, Map, attach, move_bases, parameter_groups, residual
from evenflow.maps.blocks import Blocks
from evenflow.maps.singular_values import SingularValues

EXACT = 1e-9
# A float32 matrix has the singular values asked for up to a few roundings.
ROUNDING = 2e-6

both = pytest.mark.parametrize("kind", [SVD, Factorized])


def sigma(map: Map, p: torch.Tensor) -> torch.Tensor:
    raw = map.start(torch.Generator().manual_seed(0))
    return torch.linalg.svdvals(map(*raw[:2], p.to(raw[2])).double())


@pytest.mark.parametrize("number", [1e6, -1e6, 30.0, 0.0, -1.0, torch.inf])
@pytest.mark.parametrize("bound", ["sigmoid", "clip"])
@pytest.mark.parametrize("margin", [0.0, 0.01, 0.5])
@both
def test_singular_values_stay_inside_the_margin(kind: type[Map], margin: float, bound: str, number: float) -> None:
    map = kind(12, margin=margin, bound=bound)  # type: ignore[call-arg]
    s = sigma(map, torch.full((12,), number))
    assert (s - 1).abs().max() <= margin + ROUNDING


@both
def test_vectors_of_any_length_keep_the_margin(kind: type[Map]) -> None:
    if kind is Factorized:
        pytest.skip("its bases are the optimiser's to keep")
    map = SVD(12, 8, margin=0.2)
    for scale in (1e6, -1e6, 1e-6):
        raw = [scale * torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in map.raw_shapes]
        s = torch.linalg.svdvals(map(*raw).double())
        assert 0.8 - ROUNDING <= s.min() <= s.max() <= 1.2 + ROUNDING


@both
def test_a_singular_value_at_the_edge_of_a_clip_comes_back(kind: type[Map]) -> None:
    """Pulled far outside of 1 ± 0.05, then to 0.97: the projection after each update keeps the gradient alive."""
    layer = attach(torch.nn.Linear(6, 6), "weight", kind(6, margin=0.05, bound="clip"))  # type: ignore[call-arg]
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    (chain,) = layer.parametrizations.values()  # type: ignore[union-attr]
    numbers = list(chain.parameters(recurse=False))[2]
    for target, updates in ((2.0, 30), (0.97, 60)):
        for step in range(updates):
            optimizer.zero_grad()
            (chain[0].singular_values(*chain.parameters(recurse=False)) - target).square().sum().backward()
            optimizer.step()
            move_bases(layer, step + 1)
            assert 0.95 - ROUNDING <= numbers.min() <= numbers.max() <= 1.05 + ROUNDING
        if target > 1:
            assert (numbers - 1.05).abs().max() < ROUNDING
    assert (numbers - 0.97).abs().max() < 1e-3


def test_of_several_blocks_the_projection_changes_the_singular_values_alone() -> None:
    map = Blocks(SVD(4, margin=0.05, bound="clip"), 3, (2,))
    raw = [part + 1 for part in map.start(torch.Generator().manual_seed(0))]
    before = [part.clone() for part in raw]
    map.project(*raw)
    assert all(torch.equal(part, old) for part, old in zip(raw[:-1], before[:-1], strict=True))
    torch.testing.assert_close(raw[-1], torch.full_like(raw[-1], 1.05))


def test_sigmoid_is_the_documents() -> None:
    p = torch.linspace(-4, 4, 9, dtype=torch.float64)
    assert torch.allclose(
        SingularValues(1.2, 0.3, "sigmoid").values(p), 2 * 0.3 * (torch.sigmoid(p) - 0.5) + 1.2, atol=EXACT
    )


@both
def test_margin_above_one_lets_values_be_negative(kind: type[Map]) -> None:
    map = kind(4, margin=3.0)  # type: ignore[call-arg]
    raw = map.start()
    assert map.singular_values(*raw[:2], torch.full((4,), -50.0)).max() < -1.9  # type: ignore[operator]


@both
def test_penalty(kind: type[Map]) -> None:
    map = kind(3, margin=None)  # type: ignore[call-arg]
    p = torch.tensor([1.0, 1.5, 0.0], requires_grad=True)
    penalty = map.penalty(*map.start()[:2], p)  # type: ignore[operator]
    assert torch.isclose(penalty, torch.tensor(1.25))
    assert torch.allclose(torch.autograd.grad(penalty, p)[0], torch.tensor([0.0, 1.0, -2.0]))


def test_product_of_reflections_and_diagonal() -> None:
    map = SVD(6, 4, reflectors=(3, 2), margin=0.5)
    raw = [
        torch.randn(s, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
        for i, s in enumerate(map.raw_shapes)
    ]
    diagonal = torch.zeros(6, 4, dtype=torch.float64)
    diagonal.diagonal().copy_(map.singular_values(*raw))
    U = sequential_reflections.product(torch.eye(6, dtype=torch.float64), sequential_reflections.split(raw[0], 3, 6))[0]
    V = sequential_reflections.product(torch.eye(4, dtype=torch.float64), sequential_reflections.split(raw[1], 2, 4))[0]
    assert torch.allclose(map(*raw), U @ diagonal @ V.mT, atol=EXACT)


@given(n=st.integers(1, 7), seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_theorem_2_every_square_matrix(n: int, seed: int) -> None:
    W = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for map in (SVD(n, margin=None), Factorized(n, margin=None)):
        assert (map(*map.right_inverse(W)) - W).abs().max() < EXACT


@given(n=st.integers(2, 7), left=st.integers(0, 7), seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_theorem_3_every_orthogonal_matrix_with_n_reflectors_in_all(n: int, left: int, seed: int) -> None:
    left = min(left, n)
    W = init.orthogonal(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    map = SVD(n, reflectors=(left, n - left), margin=0.01)
    raw = map.right_inverse(W)
    assert (map.singular_values(*raw) - 1).abs().max() < EXACT
    assert (map(*raw) - W).abs().max() < EXACT


@given(rows=st.integers(1, 7), columns=st.integers(1, 7), seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_theorem_4_every_rectangular_matrix(rows: int, columns: int, seed: int) -> None:
    W = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for map in (SVD(rows, columns, margin=None), Factorized(rows, columns, margin=None)):
        assert (map(*map.right_inverse(W)) - W).abs().max() < EXACT


@given(rows=st.integers(1, 6), columns=st.integers(1, 6), seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_matrices_within_the_margin_come_back(rows: int, columns: int, seed: int) -> None:
    map = SVD(rows, columns, center=1.0, margin=0.3)
    raw = [torch.randn(s, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for s in map.raw_shapes]
    W = map(*raw)
    assert (map(*map.right_inverse(W)) - W).abs().max() < EXACT


@both
def test_outside_the_margin_is_refused(kind: type[Map]) -> None:
    with pytest.raises(ValueError, match=r"singular values must lie within \[0.9, 1.1\], got ones from 2 to 2"):
        kind(3, margin=0.1).right_inverse(2 * torch.eye(3))  # type: ignore[call-arg]


def test_too_few_reflectors_for_the_matrix() -> None:
    W = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(ValueError, match="SVD with 2 and 4 reflectors cannot make this matrix; 4 on either side can"):
        SVD(4, reflectors=(2, 4), margin=None).right_inverse(W)
    identity = torch.eye(4, dtype=torch.float64)
    map = SVD(4, reflectors=0)
    assert torch.equal(map(*map.right_inverse(identity)), identity)


@pytest.mark.parametrize("reflectors", [3, (3, 0), (0, 3), (2, 1)], ids=str)
def test_a_sign_is_a_reflection(reflectors: int | tuple[int, int]) -> None:
    W = torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64))
    map = SVD(3, reflectors=reflectors, margin=0.01)
    assert (map(*map.right_inverse(W)) - W).abs().max() < EXACT


def test_count_of_the_document() -> None:
    # Table 4: a Spectral-RNN of 32 units with 16 reflectors on each side, without input, output, bias and first state.
    assert SVD(32, reflectors=16).parameter_count == 2 * (16 * 32 - 120) + 32


@pytest.mark.parametrize("name", ["orthogonal", "identity", "glorot_normal", "glorot_uniform"])
def test_factorized_starts_with_orthonormal_bases(name: str) -> None:
    U, V, p = Factorized(8, 5, init=name).start(torch.Generator().manual_seed(0))
    assert residual(U.double()) < ROUNDING
    assert residual(V.double()) < ROUNDING
    assert (p == 0).all()


def test_factorized_without_bound_starts_at_the_matrix() -> None:
    map = Factorized(8, margin=None, init="glorot_normal")
    expected = init.glorot_normal(8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(map(*map.start(torch.Generator().manual_seed(0))), expected, atol=ROUNDING)


def test_learning_rate_is_divided_by_twice_the_margin() -> None:
    layer = attach(nn.Linear(8, 8), "weight", Factorized(8, margin=0.1))
    raw = dict(layer.named_parameters())
    groups = {
        id(p): (group["lr"], group["stiefel"]) for group in parameter_groups(layer, 0.01) for p in group["params"]
    }
    assert groups[id(raw["parametrizations.weight.original0"])] == (0.01, True)
    assert groups[id(raw["parametrizations.weight.original1"])] == (0.01, True)
    assert groups[id(raw["parametrizations.weight.original2"])] == (pytest.approx(0.05), False)
    assert groups[id(raw["bias"])] == (0.01, False)
    assert Factorized(8, margin=None).rates == (1, 1, 1)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"margin": -0.1}, "margin must be a number of at least 0, or None for no bound, got -0.1"),
        ({"margin": "wide"}, "margin must be a number of at least 0, or None for no bound, got 'wide'"),
        ({"margin": float("nan")}, "margin must be a number of at least 0"),
        ({"bound": "soft"}, "bound must be one of sigmoid, clip, got 'soft'"),
    ],
    ids=["negative-margin", "another-word", "not-a-number", "bound"],
)
@both
def test_bad_settings(kind: type[Map], options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        kind(4, **options)


@pytest.mark.parametrize("reflectors", [5, -1, (2, 7), 1.5], ids=["more-than-rows", "negative", "columns", "not-whole"])
def test_bad_reflectors(reflectors: object) -> None:
    with pytest.raises(ValueError, match="reflectors must be from 0 to"):
        SVD(4, 6, reflectors=reflectors)  # type: ignore[arg-type]


def test_bad_init() -> None:
    with pytest.raises(ValueError, match="init must be one of orthogonal, identity, glorot_normal, glorot_uniform"):
        Factorized(4, init="spectral_radius")


def test_no_bound_has_a_word_for_files() -> None:
    assert SVD(4, margin="none").spectrum.margin is None
