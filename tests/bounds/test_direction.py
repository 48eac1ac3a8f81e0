"""Condition 3.33 and the rate of convergence that follows from it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evenflow.bounds import convergence_constant, direction_condition


@given(st.integers(0, 2**31), st.floats(0.01, 10), st.floats(0.05, 2))
def test_the_left_side_is_the_distance_by_the_gradients_length(seed, scale, mu):
    generator = torch.Generator().manual_seed(seed)
    g, d = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))
    d = d * scale
    found = direction_condition([d[:2], d[2:].view(2, 2)], [g[:2], g[2:].view(2, 2)], mu)
    distance = float((d - g).norm() / g.norm())
    assert found.distance == pytest.approx(distance, abs=1e-6)
    assert found.holds == (found.distance <= mu)
    angle = math.degrees(math.acos(found.cosine))
    if abs(found.distance - mu) > 1e-6:
        assert found.holds == (not math.isnan(found.widest_angle) and angle <= found.widest_angle)


def test_complex_numbers_count_as_their_two_parts():
    d, g = (torch.randn(3, 2, dtype=torch.complex64) for _ in range(2))
    found = direction_condition([d], [g], 0.5)
    parts = direction_condition([torch.view_as_real(d)], [torch.view_as_real(g)], 0.5)
    assert (found.cosine, found.ratio) == pytest.approx((parts.cosine, parts.ratio), rel=1e-12)
    turned = direction_condition(torch.tensor([1j]), torch.tensor([1j]), 0.5)
    assert (turned.cosine, turned.ratio) == pytest.approx((1, 1))


def test_a_direction_of_the_gradients_length_has_to_keep_an_angle():
    found = direction_condition(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]), mu=1)
    assert (found.cosine, found.ratio) == (0, 1)
    assert found.distance == pytest.approx(math.sqrt(2))
    assert found.widest_angle == pytest.approx(60)  # cos θ >= 1 - μ²/2
    assert not found.holds


def test_no_step_at_all_is_as_far_away_as_the_gradient_is_long():
    found = direction_condition(torch.zeros(2), torch.ones(2), mu=1)
    assert (found.cosine, found.ratio, found.distance) == (0, 0, 1)
    assert found.widest_angle == 180


def test_steps_along_a_turned_gradient_converge_as_promised():
    """``f = ‖x‖²/2`` with noise: the direction is the gradient turned by 20 degrees."""
    generator = torch.Generator().manual_seed(0)
    angle, noise, runs, steps, beta = math.radians(20), 0.5, 400, 300, 2.0
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    x = torch.tensor([1.0, 0.0]).expand(runs, 2)
    mu = direction_condition(turn @ x[0], x[0], mu=1).distance
    largest, distances = 0.0, []
    for j in range(1, steps + 1):
        distances.append(float(x.square().sum(1).mean()))
        D = x @ turn.T + noise * torch.randn(runs, 2, generator=generator)
        largest = max(largest, float(D.square().sum(1).mean()))
        x = x - beta / j * D
    Q = convergence_constant(1, 1, mu, math.sqrt(largest), beta, 1)
    assert all(distance <= Q / j for j, distance in enumerate(distances, 1))
    # With the document's denominator, 2c̄ - 1, the constant would be larger here, and negative where c̄ < 1/2.
    assert pytest.approx(beta**2 * largest / (2 * (1 - mu) * beta - 1)) == Q


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: direction_condition(torch.ones(2), torch.ones(2), 0), "mu must be a number above 0, got 0"),
        (
            lambda: direction_condition(torch.ones(2), torch.ones(3), 1),
            "direction must have the shapes of gradient, got others",
        ),
        (
            lambda: direction_condition(torch.ones(2), torch.zeros(2), 1),
            "gradient must not be zero, there is no angle to it",
        ),
        (lambda: convergence_constant(1, 2, 0.6, 1, 1, 1), "mu must be below strong / lipschitz = 0.5, got 0.6"),
        (lambda: convergence_constant(1, 1, 0.5, 1, 1, 1), "beta must be above 1 / 2(c - mu L) = 1, got 1"),
    ],
    ids=["mu", "shapes", "zero", "too wide", "beta"],
)
def test_refuses(call, message):
    with pytest.raises(ValueError) as refused:
        call()
    assert str(refused.value) == message
