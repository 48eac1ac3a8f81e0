"""projUNN: its steps against the dense ones of the paper, the manifold, descent with gradients of low rank."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import evenflow
from evenflow import SequenceModel
from evenflow.maps import residual
from evenflow.optim import ProjUNN
from evenflow.optim.projunn import directions

EXACT = 1e-12  # float64, through a handful of products
NEAR_MANIFOLD = 1e-5  # after thousands of steps in float32
FORMS = ("tangent", "direct")
DTYPES = (torch.float64, torch.complex128)
both = pytest.mark.parametrize("form", FORMS)


def drawn(n: int, dtype: torch.dtype = torch.float64, rank: int | None = None) -> tuple[nn.Parameter, Tensor]:
    generator = torch.Generator().manual_seed(n)
    M = torch.linalg.qr(torch.randn(2, n, n, dtype=dtype, generator=generator)).Q
    left, right = (torch.randn(2, n, rank or n, dtype=dtype, generator=generator) for _ in range(2))
    return nn.Parameter(M), left @ right.mH


def dense(M: Tensor, G: Tensor, lr: float, form: str) -> Tensor:
    """The equations of the paper, in full."""
    if form == "tangent":
        A = M.mH @ G
        return M @ torch.linalg.matrix_exp(-lr * (A - A.mH) / 2)
    P, _, Qh = torch.linalg.svd(M - lr * G)
    return P @ Qh


@both
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "rank"), [(8, 1), (8, 3), (8, 4), (5, 5), (1, 1)])
@pytest.mark.parametrize("lr", [1e-6, 0.01, 1.0])
def test_a_step_is_the_dense_one_for_gradients_of_this_rank(n, rank, dtype, lr, form):
    M, G = drawn(n, dtype, rank)
    M.grad, before = G.clone(), M.detach().clone()
    ProjUNN([M], lr, rank=rank, form=form).step()
    assert (M - dense(before, G, lr, form)).abs().max() < EXACT


@both
def test_other_gradients_are_replaced_by_their_largest_directions(form):
    M, G = drawn(12)
    P, _, Qh = torch.linalg.svd(G)
    G = P @ torch.diag_embed(torch.logspace(1, -5, 12, dtype=torch.float64)).expand(2, 12, 12) @ Qh
    nearest = P[..., :2] @ P[..., :2].mH @ G
    Q = directions(G, 2)
    assert (Q.mH @ Q - torch.eye(2)).abs().max() < EXACT
    assert (Q @ Q.mH @ G - nearest).norm() < 0.01 * (G - nearest).norm()
    M.grad, before = G.clone(), M.detach().clone()
    ProjUNN([M], 0.01, rank=2, form=form).step()
    assert (M - dense(before, nearest, 0.01, form)).abs().max() < 1e-4


@both
def test_it_stays_orthogonal_and_descends(form):
    torch.manual_seed(0)
    M = nn.Parameter(torch.linalg.qr(torch.randn(16, 16)).Q)
    target = torch.linalg.qr(torch.randn(16, 16)).Q
    target[0] *= (torch.linalg.det(target) * torch.linalg.det(M.detach())).sign()
    optimizer = ProjUNN([M], 0.1, form=form)
    for _ in range(3000):
        optimizer.zero_grad()
        loss = (M - target).square().sum()
        loss.backward()
        optimizer.step()
    assert loss < 1e-6
    assert residual(M) < NEAR_MANIFOLD


def test_it_trains_a_free_recurrent_matrix():
    torch.manual_seed(0)
    model = SequenceModel(evenflow.RNN(2, 16, activation="modrelu"), 1)
    matrix = model.layer.weight_hh_l0
    others = [p for p in model.parameters() if p is not matrix]
    optimizers = [torch.optim.Adam(others, 1e-2), ProjUNN([matrix], 0.02, rank=2)]
    losses = []
    for _ in range(150):
        x = torch.rand(20, 32, 2)
        loss = (model(x)[0] - x[:5].sum((0, 2)).unsqueeze(-1)).square().mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) < 0.2 * sum(losses[:10])
    assert residual(matrix) < NEAR_MANIFOLD


def test_a_resumed_run_repeats_it():
    first, G = drawn(6)
    second = nn.Parameter(first.detach().clone())
    optimizers = [ProjUNN([p], 0.1, rank=2) for p in (first, second)]
    for step in range(40):
        for p, optimizer in zip((first, second), optimizers, strict=True):
            p.grad = G * (step + 1)
            optimizer.step()
        if step == 20:
            state = optimizers[1].state_dict()
            optimizers[1] = ProjUNN([second], 0.1, rank=2)
            optimizers[1].load_state_dict(state)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((4, 4), {"rank": 0}, "rank must be a whole number of at least 1, got 0"),
        ((4, 4), {"rank": 5}, "rank must be at most 4, the size of the matrix, got 5"),
        ((4, 4), {"form": "x"}, "form must be one of tangent, direct, got 'x'"),
        ((6, 4), {}, r"ProjUNN moves square matrices, got a parameter of shape \(6, 4\)"),
    ],
)
def test_wrong_arguments(shape, options, words):
    p = nn.Parameter(torch.linalg.qr(torch.randn(*shape)).Q)
    with pytest.raises(ValueError, match=words):
        ProjUNN([p], 0.1, **options)
