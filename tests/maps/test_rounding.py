"""Orthogonal matrices in float32: closer to orthogonal than their nearest entries, and hardly moved."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evenflow import RNN
from evenflow.maps import MAPS, make
from evenflow.maps.rounding import MOVED, rounded

# What is left of |WᵀW - I| where the small entries can take up the errors of the large ones.
LEFT = {"householder": 0.8, "rotations": 0.25}
# A batch's products may add up in another order than those of one matrix alone; an entry may land on the next number.
NEXT = 2.0**-24
# The gradient of the nearest matrix at a point that is moved by MOVED, over six steps.
GRADIENT = {"rtol": 1e-4, "atol": 1e-5}

REAL = [name for name in MAPS if MAPS[name].orthogonal and not name.startswith("unitary")]


def exact(name: str, n: int, seed: int = 0, stretch: float = 1.0) -> Tensor:
    map = make(name, n)
    return map(*(stretch * r.double() for r in map.start(torch.Generator().manual_seed(seed))))


def off(W: Tensor) -> Tensor:
    full = W.double()
    return torch.linalg.matrix_norm(full.mT @ full - torch.eye(W.shape[-1], dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [64, 128])
@pytest.mark.parametrize("name", LEFT)
def test_less_is_lost(name: str, n: int, seed: int) -> None:
    W = exact(name, n, seed)
    assert off(rounded(W)) < LEFT[name] * off(W.float())


@pytest.mark.parametrize("stretch", [1.0, 3.0], ids=["start", "further"])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 33, 64])
@pytest.mark.parametrize("name", REAL)
def test_never_more_is_lost_and_no_entry_moves_far(name: str, n: int, stretch: float) -> None:
    if name == "rotations" and n % 2:
        pytest.skip("turns pairs of coordinates")
    W = exact(name, n, stretch=stretch)
    W32 = rounded(W)
    assert W32.dtype == torch.float32
    assert off(W32) <= off(W.float())
    assert (W32 - W).abs().max() <= MOVED


@pytest.mark.parametrize("name", REAL)
def test_a_batch_is_its_matrices_one_by_one(name: str) -> None:
    W = torch.stack([exact(name, 16, seed) for seed in range(6)]).view(2, 3, 16, 16)
    together = rounded(W)
    for i in range(2):
        for j in range(3):
            assert (together[i, j] - rounded(W[i, j])).abs().max() <= NEXT
    assert rounded(W[:0]).shape == (0, 3, 16, 16)


def test_each_of_a_batch_is_judged_alone() -> None:
    """A matrix that cannot be helped, and one that is no number, stay as they are beside one that can."""
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    blocks = torch.block_diag(*[turn] * 16)
    together = rounded(torch.stack([blocks, exact("rotations", 32), torch.full((32, 32), torch.nan).double()]))
    assert torch.equal(together[0], blocks.float())
    assert off(together[1]) < LEFT["rotations"] * off(exact("rotations", 32).float())
    assert together[2].isnan().all()


def test_a_zero_stays_zero() -> None:
    W = torch.block_diag(exact("householder", 24), exact("rotations", 24), torch.ones(1, 1, dtype=torch.float64))
    W32 = rounded(W)
    assert torch.equal(W32 == 0, W == 0)
    assert off(W32) < off(W.float())


def test_a_column_that_is_nearly_one_entry_is_not_torn_away() -> None:
    """Its length could be mended only by moving its small entries by more than they are."""
    small = torch.zeros(16, 16, dtype=torch.float64)
    small[0, 1:] = 1e-6
    W = torch.linalg.matrix_exp(small - small.mT) @ torch.block_diag(torch.ones(1, 1), exact("householder", 15))
    W32 = rounded(W)
    assert (W32 - W).abs().max() <= MOVED
    assert off(W32) <= off(W.float())


@pytest.mark.parametrize("name", REAL)
def test_only_from_float64_to_float32(name: str) -> None:
    """In float64 and without a precision nothing is touched; with one the layer's matrix is the rounded one."""
    raw = make(name, 16).start(torch.Generator().manual_seed(0))
    plain, precise = make(name, 16), make(name, 16, precision="float64")
    double = [r.double() for r in raw]
    assert torch.equal(precise(*double), plain(*double))
    assert torch.equal(plain(*raw), plain.matrix(*raw))
    assert (precise(*raw) - rounded(plain(*double))).abs().max() <= 2.0**-40


@pytest.mark.parametrize("name", REAL)
def test_gradients_pass_unchanged(name: str) -> None:
    raw = [r.requires_grad_() for r in make(name, 16).start(torch.Generator().manual_seed(0))]
    double = [r.detach().double().requires_grad_() for r in raw]
    pull = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))
    got = torch.autograd.grad(make(name, 16, precision="float64")(*raw), raw, pull)
    for g, e in zip(got, torch.autograd.grad(make(name, 16)(*double), double, pull.double()), strict=True):
        torch.testing.assert_close(g, e.float())


@pytest.mark.parametrize("name", REAL)
def test_a_layers_gradients_are_those_of_double_precision(name: str) -> None:
    layers = [RNN(2, 16, map=name, precision="float64"), RNN(2, 16, map=name, dtype=torch.float64)]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(1))
    for layer in layers:
        layer(x.to(layer.weight_ih_l0.dtype))[0].square().sum().backward()
    for p, q in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad.float(), **GRADIENT)


@pytest.mark.parametrize("name", REAL)
def test_compiles_whole(name: str) -> None:
    torch.compiler.reset()
    map = make(name, 16, precision="float64")
    raw = map.start(torch.Generator().manual_seed(0))
    W = torch.compile(map, backend="aot_eager", fullgraph=True)(*raw)
    assert (W - map(*raw)).abs().max() <= MOVED
    assert off(W) <= off(exact(name, 16).float())


def test_shorter_products_where_allowed_lose_nothing() -> None:
    W, allowed = exact("householder", 64), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert off(rounded(W)) < LEFT["householder"] * off(W.float())
    finally:
        torch.set_float32_matmul_precision(allowed)
