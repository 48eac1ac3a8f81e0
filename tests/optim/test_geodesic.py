"""The optimisers of orthonormal columns: Cayley's step against dense float64, descent, the manifold, resumption."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from evenflow import init
from evenflow.maps import residual
from evenflow.optim import GeodesicAdam, GeodesicSGD, stiefel
from evenflow.optim.geodesic import POLISH_EVERY

# A few roundings of numbers up to one, through a handful of products.
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-14}
# What the issue asks for, after 100,000 steps in float32.
NEAR_MANIFOLD = 1e-5

SHAPES = {"square": (6, 6), "tall": (9, 3), "nearly-square": (7, 5), "column": (5, 1), "one": (1, 1)}
MAKE = {
    "sgd": lambda params, lr: GeodesicSGD(params, lr),
    "momentum": lambda params, lr: GeodesicSGD(params, lr, momentum=0.9),
    "adam": lambda params, lr: GeodesicAdam(params, lr),
}
shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
every = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def orthonormal(*shape, dtype=torch.float64, seed=0):
    return torch.linalg.qr(torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)))[0]


def dense(M, G, lr):
    """The equation itself, in float64."""
    M, G = M.to(torch.promote_types(M.dtype, torch.float64)), G.to(torch.promote_types(G.dtype, torch.float64))
    I, A = torch.eye(M.shape[-2], dtype=M.dtype), G @ M.mH - M @ G.mH
    return torch.linalg.inv(I + lr / 2 * A) @ (I - lr / 2 * A) @ M


@pytest.mark.parametrize("dtype", ROUNDING, ids=["float32", "float64"])
@pytest.mark.parametrize("lr", [1e-9, 1e-5, 1e-3, 0.02, 0.3, 5.0])
@shapes
def test_step_is_the_dense_one(shape, lr, dtype):
    M, G = orthonormal(2, *shape).to(dtype), torch.randn(2, *shape).to(dtype)
    p = nn.Parameter(M.clone())
    p.grad = G
    GeodesicSGD([p], lr).step()
    # The low-rank form loses digits as the square of a step that turns M by more than a right angle.
    assert (p - dense(M, G, lr)).abs().max() < ROUNDING[dtype] * max(1, lr**2)


@pytest.mark.parametrize("size", [1e-3, 0.02, 0.1, 0.3])
def test_long_series_is_the_dense_step(size, monkeypatch):
    """What a GPU does where a CPU would solve."""
    monkeypatch.setitem(stiefel.LONGEST, "cpu", stiefel.LONGEST_ELSEWHERE)
    monkeypatch.setattr(torch.linalg, "lu_factor_ex", None)
    M, G = orthonormal(2, 8, 8), torch.randn(2, 8, 8, dtype=torch.float64)
    size = size / torch.linalg.matrix_norm(G @ M.mT - M @ G.mT).max()
    found = stiefel.cayley_step(M.float(), (size * G).float())
    assert (found - dense(M, G, 2 * size)).abs().max() < ROUNDING[torch.float32]


@pytest.mark.parametrize("lr", [1e-9, 1e-5, 1e-3, 0.02, 0.3, 5.0])
@shapes
def test_a_first_step_with_momentum_is_the_dense_one(shape, lr):
    """A narrow M from a system of p x p numbers, which the plain step does not use."""
    M, G = orthonormal(2, *shape), torch.randn(2, *shape, dtype=torch.float64)
    p = nn.Parameter(M.clone())
    p.grad = G
    GeodesicSGD([p], lr, momentum=0.9).step()
    assert (p - dense(M, G, lr)).abs().max() < ROUNDING[torch.float64] * max(1, lr**2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(8, 8), (13, 13), (11, 7)], ids=str)
def test_blocks_are_the_dense_step(shape, dtype, monkeypatch):
    """What a CPU does with a large matrix and a large step, here with blocks of one or two rows."""
    monkeypatch.setitem(stiefel.BLOCKS, "cpu", 4)
    monkeypatch.setattr(stiefel, "LEAF", 2)
    monkeypatch.setattr(torch.linalg, "lu_factor_ex", None)
    M, G = (orthonormal(3, *shape, dtype=torch.promote_types(dtype, torch.float64), seed=s) for s in (0, 1))
    for size in (0.1, 1.0):
        found = stiefel.cayley_step(M.to(dtype), size / 2 * G.to(dtype))
        assert (found - dense(M, G, size)).abs().max() < ROUNDING[found.real.dtype]


def test_a_large_matrix_takes_blocks(monkeypatch):
    monkeypatch.setattr(torch.linalg, "lu_factor_ex", None)
    n = stiefel.BLOCKS["cpu"] + 1
    M, G = orthonormal(n, n), torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = stiefel.cayley_step(M.float()[None], 0.002 / 2 * G.float()[None])
    assert (found[0] - dense(M, G, 0.002)).abs().max() < ROUNDING[torch.float32]


def test_a_step_too_large_for_blocks_is_left_to_lu(monkeypatch):
    """S = [[0, B], [-Bᵀ, 0]], where blocks without pivots would lose digits as the square of |B|."""
    monkeypatch.setitem(stiefel.BLOCKS, "cpu", 4)
    S = torch.zeros(1, 8, 8, dtype=torch.float64)
    S[:, :4, 4:] = 1000 * orthonormal(4, 4)
    S, I = S - S.mT, torch.eye(8, dtype=torch.float64)
    found = stiefel.turned(I[None].float(), S.float())
    assert (found - torch.linalg.solve(I + S, I - S)).abs().max() < ROUNDING[torch.float32]


def test_complex_step_is_the_dense_one():
    M, G = (orthonormal(5, 5, dtype=torch.complex128, seed=s) for s in (0, 1))
    p = nn.Parameter(M.clone())
    p.grad = G
    GeodesicSGD([p], 0.3).step()
    assert (p - dense(M, G, 0.3)).abs().max() < ROUNDING[torch.float64]


@every
@shapes
def test_one_step_descends(make, shape):
    """On 50 random quadratics each; the released step of the factorized document fails on most."""
    for seed in range(50):
        source = torch.Generator().manual_seed(seed)
        target = torch.randn(*shape, dtype=torch.float64, generator=source)
        weight = torch.rand(*shape, dtype=torch.float64, generator=source)
        p = nn.Parameter(orthonormal(*shape, seed=seed))
        optimizer = make([p], 1e-4)
        before = (weight * (p - target)).square().sum()
        before.backward()
        optimizer.step()
        after = (weight * (p - target)).square().sum()
        assert after < before or torch.equal(p.abs(), torch.ones_like(p))  # one number cannot move
        assert residual(p).max() < ROUNDING[torch.float64]


@every
def test_finds_the_nearest_orthogonal_matrix(make):
    target = torch.randn(6, 4, dtype=torch.float64) + 2 * torch.eye(6, 4, dtype=torch.float64)
    U, _, Vh = torch.linalg.svd(target, full_matrices=False)
    p = nn.Parameter(orthonormal(6, 4))
    optimizer = make([p], 0.02)
    for step in range(1500):
        optimizer.param_groups[0]["lr"] = 0.02 if step < 1000 else 0.002
        optimizer.zero_grad()
        (p - target).square().sum().backward()
        optimizer.step()
    assert (p - U @ Vh).abs().max() < 1e-3


def wander(make, steps, shape=(8, 8)):
    p = nn.Parameter(init.orthogonal(*shape, generator=torch.Generator().manual_seed(0)))
    optimizer, source = make([p], 0.01), torch.Generator().manual_seed(1)
    gradients = torch.randn(1000, *shape, generator=source)
    for step in range(steps):
        p.grad = gradients[step % 1000]
        optimizer.step()
    return residual(p.detach().double()).item()


@every
def test_stays_near_the_manifold(make):
    assert wander(make, 5_000) < NEAR_MANIFOLD


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(8, 8), (24, 6), (24, 20), (64, 64)], ids=str)
@every
def test_stays_near_the_manifold_for_100_000_steps(make, shape):
    assert wander(make, 100_000, shape) < NEAR_MANIFOLD


@every
def test_models_are_independent(make):
    """Leading dimensions, and other parameters of the shape, change nothing but rounding."""
    stacked, alone = nn.Parameter(orthonormal(3, 6, 4)), [nn.Parameter(M.clone()) for M in orthonormal(3, 6, 4)]
    optimizers = [make([stacked], 0.05), make(alone, 0.05)]
    for seed in range(5):
        G = torch.randn(3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        stacked.grad = G
        for p, g in zip(alone, G, strict=True):
            p.grad = g
        for optimizer in optimizers:
            optimizer.step()
    assert (stacked - torch.stack(list(alone))).abs().max() < ROUNDING[torch.float64]


@every
def test_resumed_to_the_last_bit(make):
    """Across a polishing step, through a saved state_dict."""
    p = nn.Parameter(orthonormal(6, 4, dtype=torch.float32))
    optimizer = make([p], 0.05)
    source = torch.Generator().manual_seed(3)
    gradients = torch.randn(2 * POLISH_EVERY, 6, 4, generator=source)

    def go(p, optimizer, some):
        for G in some:
            p.grad = G.clone()
            optimizer.step()

    half = POLISH_EVERY - 3
    go(p, optimizer, gradients[:half])
    other = nn.Parameter(p.detach().clone())
    resumed = make([other], 1.0)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    go(p, optimizer, gradients[half:])
    go(other, resumed, gradients[half:])
    assert torch.equal(p, other)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("shape", [(6, 6), (9, 3), (2, 2, 5, 3)], ids=str)
@pytest.mark.parametrize("make", [MAKE["momentum"], MAKE["adam"]], ids=["momentum", "adam"])
def test_what_is_kept_stays_in_its_place(make, shape, count):
    """Where a capture looks for it, with one parameter or several; and it is the parameter's own shape."""
    parameters = [nn.Parameter(orthonormal(*shape, seed=seed)) for seed in range(count)]
    optimizer, seen = make(parameters, 0.01), []
    for _ in range(2):
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer.step()
        now = [v for p in parameters for k, v in optimizer.state[p].items() if k != "step"]
        seen.append([(v, v.clone()) for v in now])
    for (early, value), (late, _) in zip(*seen, strict=True):
        assert early is late
        assert not torch.equal(late, value)
        assert late.shape in (shape, (*shape[:-2], 1, 1))


def test_momentum_goes_on_where_the_gradient_ends():
    p = nn.Parameter(orthonormal(6, 4))
    optimizer = GeodesicSGD([p], 0.05, momentum=0.5)
    p.grad = torch.randn(6, 4, dtype=torch.float64)
    optimizer.step()
    first, before = optimizer.state[p]["velocity"].norm(), p.detach().clone()
    p.grad = torch.zeros_like(p)
    optimizer.step()
    velocity = optimizer.state[p]["velocity"]
    assert not torch.equal(p, before)
    assert (before.mT @ velocity + velocity.mT @ before).abs().max() < ROUNDING[torch.float64]  # a tangent there
    assert 0.4 * first < velocity.norm() < 0.5 * first


def test_momentum_of_a_square_matrix_turns_with_it():
    """With a gradient at the first step alone, every step is a power of the same skew matrix's transform."""
    M, G = orthonormal(5, 5), torch.randn(5, 5, dtype=torch.float64)
    p = nn.Parameter(M.clone())
    optimizer = GeodesicSGD([p], 0.1, momentum=0.5)
    for step in range(3):
        p.grad = G if step == 0 else torch.zeros_like(G)
        optimizer.step()
    A, expected = G @ M.mT - M @ G.mT, M
    for step in range(3):
        expected = dense(expected, 0.5**step / 2 * A @ expected, 0.1)  # A(A M / 2) = A for a skew A
    assert (p - expected).abs().max() < ROUNDING[torch.float64]


def test_adam_moves_a_typical_entry_by_its_rate():
    for scale in (1e-6, 1.0, 1e6):
        p = nn.Parameter(orthonormal(16, 16))
        before = p.detach().clone()
        p.grad = scale * torch.randn(16, 16, dtype=torch.float64)
        GeodesicAdam([p], lr=1e-4, eps=1e-20).step()
        assert (p - before).square().mean().sqrt().item() == pytest.approx(1e-4, rel=1e-2)


def test_adam_counts_each_parameters_own_steps():
    first, late = (nn.Parameter(orthonormal(4, 4)) for _ in range(2))
    optimizer = GeodesicAdam([first, late], lr=0.01)
    G = torch.randn(4, 4, dtype=torch.float64)
    first.grad = G
    optimizer.step()
    after_one = first.detach().clone()
    late.grad = G
    first.grad = torch.zeros_like(G)
    optimizer.step()
    assert (late - after_one).abs().max() < ROUNDING[torch.float64]


def test_a_closure_gives_the_loss():
    p = nn.Parameter(orthonormal(4, 4))
    optimizer = GeodesicSGD([p], 0.1)

    def closure():
        optimizer.zero_grad()
        loss = p.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == pytest.approx(float(orthonormal(4, 4).sum()))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: GeodesicSGD([nn.Parameter(torch.eye(3))], -1), "lr must be a number of at least 0, got -1"),
        (
            lambda: GeodesicSGD([nn.Parameter(torch.eye(3))], 1.0, momentum=1.0),
            "momentum must be a number of at least 0 and below 1, got 1.0",
        ),
        (
            lambda: GeodesicSGD([nn.Parameter(torch.eye(3))], 1.0, clip_norm=0.0),
            "clip_norm must be a number above 0, got 0.0",
        ),
        (
            lambda: GeodesicAdam([nn.Parameter(torch.eye(3))], betas=(0.9, 1.0)),
            "each of betas must be a number of at least 0 and below 1, got 1.0",
        ),
        (lambda: GeodesicAdam([nn.Parameter(torch.eye(3))], eps=0), "eps must be a number above 0, got 0"),
        (
            lambda: GeodesicSGD([nn.Parameter(torch.eye(2, 3))], 0.1),
            "GeodesicSGD moves matrices with at least as many rows as columns, got a parameter of shape (2, 3)",
        ),
        (
            lambda: GeodesicSGD([nn.Parameter(torch.eye(3).bfloat16())], 0.1),
            "GeodesicSGD needs float32 or float64 parameters, got torch.bfloat16",
        ),
        (
            lambda: GeodesicAdam([nn.Parameter(2 * torch.eye(3))]),
            "GeodesicAdam moves matrices with orthonormal columns, got a parameter of shape (3, 3) with |MᵀM - I| up "
            "to 3",
        ),
    ],
    ids=["rate", "momentum", "clip", "betas", "eps", "wide", "half", "not-orthonormal"],
)
def test_refused(build, sentence):
    with pytest.raises(ValueError) as error:
        build()
    assert str(error.value) == sentence


@pytest.mark.parametrize("make", [GeodesicSGD, GeodesicAdam])
def test_a_refused_group_is_not_kept(make):
    optimizer = make([nn.Parameter(orthonormal(4, 4))], lr=0.1)
    for refused in (2 * torch.eye(3), torch.eye(2, 3), torch.eye(3).bfloat16()):
        p = nn.Parameter(refused.clone())
        with pytest.raises(ValueError, match=make.__name__):
            optimizer.add_param_group({"params": [nn.Parameter(torch.eye(3)), p]})
        assert len(optimizer.param_groups) == 1
        p.grad = torch.ones_like(p)
        optimizer.step()
        assert torch.equal(p, refused)
    optimizer.add_param_group({"params": nn.Parameter(torch.eye(3)), "lr": 0.2})
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("shape", [(8, 8), (8, 5), (12, 3)], ids=str)
def test_a_capture_takes_the_same_steps(shape, momentum, monkeypatch):
    """While a CUDA graph is captured nobody looks: the longest series, and rounding taken back each time."""
    ends = []
    for capture in (False, True):
        monkeypatch.setattr(stiefel, "in_capture", lambda value, answer=capture: answer)
        torch.manual_seed(0)
        M = torch.nn.Parameter(torch.linalg.qr(torch.randn(*shape, dtype=torch.float64))[0])
        target = torch.randn(*shape, dtype=torch.float64)
        optimizer = GeodesicSGD([M], lr=0.002, momentum=momentum)
        for _ in range(5):
            optimizer.zero_grad()
            (M - target).square().sum().backward()
            optimizer.step()
        ends.append(M.detach())
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "rate", "enough"),
    [(torch.float32, rate, degree) for rate, degree in ((1e-6, 1), (1e-3, 2), (0.01, 3), (0.02, 7), (0.2, 15))]
    + [(torch.float64, rate, degree) for rate, degree in ((1e-9, 1), (1e-6, 2), (1e-3, 7), (0.02, 15), (0.2, 31))],
)
@pytest.mark.parametrize("shape", [(2, 9, 9), (8, 5), (1, 1)], ids=str)
def test_a_capture_of_clipped_gradients_takes_a_short_series(shape, dtype, rate, enough, monkeypatch):
    degrees, series = [], stiefel._series
    monkeypatch.setattr(stiefel, "in_capture", lambda value: True)
    monkeypatch.setattr(stiefel, "_series", lambda M, S, degree: degrees.append(degree) or series(M, S, degree))
    M, G = orthonormal(*shape), torch.randn(*shape, dtype=torch.float64)
    G = 0.5 * G / torch.linalg.matrix_norm(G, keepdim=True)
    steps = []
    for clip_norm in (None, 0.5):
        p = nn.Parameter(M.to(dtype, copy=True))
        p.grad = G.to(dtype)
        optimizer = GeodesicSGD([p], rate, clip_norm=clip_norm)
        # As `fit` has it: the rate on the device, where nobody looks, and a first one that is known.
        optimizer.param_groups[0] |= {"lr": torch.tensor(rate, dtype=torch.float64), "initial_lr": rate}
        optimizer.step()
        steps.append(p.detach())
    for found in steps:
        torch.testing.assert_close(found.double(), dense(M, G, rate), rtol=0, atol=ROUNDING[dtype])
    assert degrees == [31, enough]


@pytest.mark.parametrize(
    ("first", "clip_norm"), [(torch.tensor(1e-6), 1.0), (None, 1.0), (1e-6, None), (1e-3, 1e13)], ids=str
)
def test_a_capture_that_knows_too_little_takes_the_longest_series(first, clip_norm, monkeypatch):
    degrees, series = [], stiefel._series
    monkeypatch.setattr(stiefel, "in_capture", lambda value: True)
    monkeypatch.setattr(stiefel, "_series", lambda M, S, degree: degrees.append(degree) or series(M, S, degree))
    p = nn.Parameter(torch.eye(4))
    p.grad = torch.randn(4, 4)
    optimizer = GeodesicSGD([p], 1e-6, clip_norm=clip_norm)
    optimizer.param_groups[0] |= {"lr": torch.tensor(1e-6)} | ({} if first is None else {"initial_lr": first})
    optimizer.step()
    assert degrees == [31]


def test_a_gradient_longer_than_it_was_said_to_be_is_not_a_number(monkeypatch):
    monkeypatch.setattr(stiefel, "in_capture", lambda value: True)
    p = nn.Parameter(torch.eye(4))
    p.grad = 1000 * torch.randn(4, 4)
    GeodesicSGD([p], 1e-4, clip_norm=1.0).step()
    assert p.isnan().all()


def test_rounding_is_taken_back_by_whoever_says_so(monkeypatch):
    monkeypatch.setattr(stiefel, "in_capture", lambda value: True)
    off = {}
    for polishes in (True, False):
        members = [nn.Parameter((1 + 1e-4) * orthonormal(*shape)) for shape in [(6, 6), (6, 6), (9, 3), (2, 5, 4)]]
        optimizer = GeodesicSGD(members, 1e-9)
        optimizer.polishes = polishes
        for p in members:
            p.grad = torch.ones_like(p)
        optimizer.step()
        off[polishes] = max(float(residual(p.detach()).max()) for p in members)
    assert off[True] < 1e-7 < 1e-4 < off[False]
    optimizer.polish()
    assert max(float(residual(p.detach()).max()) for p in members) < 1e-7


def test_a_step_too_long_for_a_capture_is_not_a_number(monkeypatch):
    monkeypatch.setattr(stiefel, "in_capture", lambda value: True)
    M, S = torch.eye(4)[None], torch.randn(1, 4, 4)
    assert stiefel.turned(M, 1e-2 * (S - S.mT)).isfinite().all()
    assert stiefel.turned(M, 10 * (S - S.mT)).isnan().all()
