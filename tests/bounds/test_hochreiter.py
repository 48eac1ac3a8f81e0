"""Galvan's two upper bounds: never exceeded, reached where he says so, and his exponent."""

from __future__ import annotations

import pytest
import torch
from bounded_models import STEPS, layers, matrix, plain, torchs
from hypothesis import given, settings
from torch import nn

from evenflow import LSTM, RNN
from evenflow.bounds import hochreiter_bound, hochreiter_from, singular_value_bound, singular_value_from

ROUNDING = 1e-9


@settings(max_examples=60)
@given(layers(plain, torchs))
def test_measured_entries_and_norms_stay_below(layer):
    x = torch.randn(STEPS, 1, 2, dtype=torch.float64)
    for lag in (0, 1, STEPS - 1):
        J = matrix(layer, x, STEPS - 1, STEPS - 1 - lag)
        assert J.abs().max() <= hochreiter_bound(layer, lag).value * (1 + ROUNDING)
        assert torch.linalg.matrix_norm(J, 2) <= singular_value_bound(layer, lag).value * (1 + ROUNDING)


def equal_weights(weight, units):
    layer = RNN(1, units, activation="relu", dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.fill_(weight)
        layer.weight_ih_l0.fill_(1)
    return layer


@pytest.mark.parametrize("weight", [0.1, 0.5])
def test_reached_by_weights_of_one_sign_and_units_that_are_on(weight):
    layer = equal_weights(weight, 4)
    J = matrix(layer, torch.ones(STEPS, 1, 1, dtype=torch.float64), STEPS - 1, 2)
    lag = STEPS - 3
    assert J.max().item() == pytest.approx(hochreiter_bound(layer, lag).value, rel=ROUNDING)
    assert torch.linalg.matrix_norm(J, 2).item() == pytest.approx(singular_value_bound(layer, lag).value, rel=ROUNDING)


def test_the_printed_exponent_is_too_small():
    layer = equal_weights(2.0, 1)
    J = matrix(layer, torch.ones(STEPS, 1, 1, dtype=torch.float64), 5, 2)
    assert J.item() == pytest.approx(2**3)
    assert J.item() > 2 ** (3 - 1)  # t - k - 1, as printed in 1.67 and 1.72
    assert hochreiter_bound(layer, 3).value == singular_value_bound(layer, 3).value == pytest.approx(8)


def test_numbers_alone():
    assert hochreiter_from(0.25, 0.25, 16, 3).rate == 1  # the logistic function's slope, as in the document
    assert hochreiter_from(0.24, 0.25, 16, 3).vanishes
    assert singular_value_from(0.9, 1, 10).value == pytest.approx(0.9**10)
    assert not singular_value_from(1.1, 1, 10).vanishes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hochreiter_bound(LSTM(2, 4), 3), "this bound needs a plain layer, got a LSTM cell"),
        (lambda: singular_value_bound(nn.RNN(2, 4), -3), "lag must be a whole number of at least 0, got -3"),
        (lambda: hochreiter_from(-1, 1, 4, 3), "largest_weight must be a number of at least 0, got -1"),
    ],
    ids=["lstm", "lag", "weight"],
)
def test_refuses(call, message):
    with pytest.raises(ValueError) as refused:
        call()
    assert str(refused.value) == message
