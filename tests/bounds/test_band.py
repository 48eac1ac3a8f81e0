"""The band of ‖∂h_t/∂h_k‖: never left, tight where it is a line, and the tables of the uRNN document."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from bounded_models import STEPS, complex_units, gated, layers, plain, torchs
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evenflow import GRU, RNN, SequenceModel, activations
from evenflow.bounds import band, gradient_band, regime
from evenflow.bounds.band import slopes
from evenflow.probes import jacobian, jacobian_norms, spectrum

ROUNDING = 1e-9  # float64, of products of nine matrices
EXACT = 1e-11  # the same for a hundred


@settings(max_examples=150)
@given(layers(plain, gated, torchs, complex_units), st.floats(0.1, 10))
def test_measured_norms_stay_inside(layer, size):
    x = size * torch.randn(STEPS, 2, 2, dtype=torch.float64)
    measured = jacobian_norms(layer, x)
    for norm in ("frobenius", "spectral"):
        values = getattr(measured, norm)
        for k, row in zip(measured.k, values, strict=True):
            limits = gradient_band(layer, int(measured.t - k), norm=norm)
            assert (row <= limits.upper * (1 + ROUNDING)).all()
            assert (row >= limits.lower * (1 - ROUNDING)).all()


@pytest.mark.parametrize("map", ["exponential", "cayley", "householder", "rotations"])
@pytest.mark.parametrize("activation", ["abs", "oplu", "identity"])
def test_a_line_where_slopes_and_singular_values_are_one(map, activation):
    layer = RNN(2, 64, map=map, activation=activation, dtype=torch.float64)
    limits = gradient_band(layer, 99)
    assert limits.regime == "constant"
    assert limits.lower == pytest.approx(8, rel=EXACT)
    assert limits.upper == pytest.approx(8, rel=EXACT)
    measured = jacobian(layer, torch.randn(100, 2, 2, dtype=torch.float64), t=99, k=0)
    np.testing.assert_allclose(measured.frobenius, math.sqrt(64), rtol=EXACT)


def test_the_upper_end_is_reached():
    """A scaled orthogonal matrix and relu units that are all on."""
    layer = RNN(1, 4, activation="relu", dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(0.5 * torch.eye(4).roll(1, 0))
        layer.weight_ih_l0.fill_(1)
    measured = jacobian(layer, torch.ones(10, 1, 1, dtype=torch.float64), t=9, k=0)
    assert measured.frobenius.item() == pytest.approx(gradient_band(layer, 9).upper, rel=ROUNDING)


def test_eigenvalues_would_not_do():
    """The theorem as printed, for a diagonalisable matrix that is not normal."""
    layer = RNN(1, 2, activation="identity", dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.tensor([[0.5, 3.0], [0.0, 0.4]]))
    measured = jacobian(layer, torch.zeros(4, 1, 1, dtype=torch.float64), t=3, k=0, method="exact").frobenius.item()
    (found,) = spectrum(layer)
    assert found.radius == pytest.approx(0.5)
    assert measured > found.radius**3 * math.sqrt(2)
    assert measured < gradient_band(layer, 3).upper


@pytest.mark.parametrize(
    ("activation", "slope_bounds"), [("abs", (1, 1)), ("relu", (0, 1)), ("leaky(0.5)", (0.5, 1))], ids=str
)
def test_table_2(activation, slope_bounds):
    assert activations.make(activation).slope_bounds == slope_bounds


@pytest.mark.parametrize(
    ("activation", "units", "lower", "upper"),
    [
        ("abs", 100, 10, 10),
        ("relu", 200, 0, 14.14),
        ("leaky(0.5)", 200, 9.3e-10 * math.sqrt(200), 14.14),  # the document prints 0.5^30 without its root of 200
    ],
    ids=["abs", "relu", "leaky"],
)
def test_table_6(activation, units, lower, upper):
    found = band((1, 1), activations.make(activation).slope_bounds, lag=30, units=units)
    assert found.lower == pytest.approx(lower, rel=5e-3)  # as printed, two or four digits
    assert found.upper == pytest.approx(upper, rel=5e-3)
    layer = RNN(2, units, map="exponential", activation=activation)
    assert gradient_band(layer, 30).upper == pytest.approx(found.upper, rel=1e-3)


@pytest.mark.parametrize(
    ("lower", "upper", "word"),
    [
        (0.5, 0.9, "vanishes"),
        (0, 1, "may vanish"),
        (0.9, 1.1, "may vanish or explode"),
        (1, 1, "constant"),
        (1, 1.1, "may explode"),
        (1.1, 1.2, "explodes"),
    ],
)
def test_table_1(lower, upper, word):
    assert regime(lower, upper) == word
    assert band((lower, upper), (1, 1), 5, 4).regime == word


def test_sgornns_gates_bound_the_rate():
    layer = gated("exponential", "relu", 4, 0.2)
    found = gradient_band(layer, 10)
    assert found.upper_rate == pytest.approx(0.1 + 0.9)
    assert found.lower_rate == pytest.approx(0.9 - 0.1)


def test_slopes_follow_what_was_trained():
    layer = RNN(2, 4, activation="prelu(0.25)")
    with torch.no_grad():
        layer.activation_l0.fill_(-2)
    weights = {"activation": layer.activation_l0.detach()}
    assert slopes(layer.cell, weights) == (1, 2)
    assert gradient_band(layer, 3).upper_rate == pytest.approx(2 * spectrum(layer)[0].max)


def test_complex_units_with_a_positive_bias_have_no_upper_end():
    layer = complex_units("", "", 4, 1)
    assert gradient_band(layer, 3).upper_rate == pytest.approx(1)
    with torch.no_grad():
        layer.activation_l0.fill_(0.01)
    assert gradient_band(layer, 3).upper == math.inf


def test_takes_a_model_and_every_layer_of_a_stack():
    layer = nn.RNN(2, 4, 2)
    with torch.no_grad():
        layer.weight_hh_l0.mul_(3)
    assert gradient_band(SequenceModel(layer, 1), 5) == gradient_band(layer, 5, member=1)
    assert gradient_band(layer, 5, member=0).upper > gradient_band(layer, 5).upper


def test_large_lags_are_infinite_not_an_error():
    assert band((2, 2), (1, 1), lag=10_000, units=4).lower == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient_band(GRU(2, 4), 5), "a gradient band needs a plain or scalar-gated layer, got a GRU cell"),
        (lambda: gradient_band(RNN(2, 4), -1), "lag must be a whole number of at least 0, got -1"),
        (lambda: gradient_band(RNN(2, 4), 1, norm="max"), "norm must be one of frobenius, spectral, got 'max'"),
        (
            lambda: band((2, 1), (1, 1), 1, 4),
            "singular_values must be two numbers of at least 0, the smaller first, got (2, 1)",
        ),
        (lambda: gradient_band(nn.RNN(2, 4), 1, member=3), "member must be below 1 for this layer, got 3"),
    ],
    ids=["gru", "lag", "norm", "order", "member"],
)
def test_refuses(call, message):
    with pytest.raises(ValueError) as refused:
        call()
    assert str(refused.value) == message
